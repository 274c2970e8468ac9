#include "serve/text/stream_decoder.h"

#include "base/check.h"
#include "serve/text/text_handle.h"

namespace tandem::text {

void StreamDecoder::Free::operator()(tt_stream* handle) const { tt_stream_free(handle); }

StreamDecoder::StreamDecoder(const Tokenizer& tokenizer, bool skip_special)
    : handle_(tt_stream_new(tokenizer.handle(), skip_special)) {
  TANDEM_CHECK(handle_ != nullptr);  // it fails on a null tokenizer only
}

void StreamDecoder::seed(const std::vector<TokenId>& prompt) {
  tt_stream_seed(handle_.get(), raw_ids(prompt), prompt.size());
}

std::string_view StreamDecoder::push(TokenId id) {
  return view_of(tt_stream_push(handle_.get(), static_cast<uint32_t>(id)));
}

std::string_view StreamDecoder::finish() { return view_of(tt_stream_finish(handle_.get())); }

}  // namespace tandem::text
