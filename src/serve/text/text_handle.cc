#include "serve/text/text_handle.h"

namespace tandem::text {

Error OutText::error(ErrorCode code) const {
  std::string message = str();
  // What the library says of a caught panic.
  if (message.rfind("internal error", 0) == 0) code = ErrorCode::kInternal;
  return Error{code, std::move(message)};
}

}  // namespace tandem::text
