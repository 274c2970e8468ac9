#include <fmt/format.h>

#include "apps/cli/help_text.h"
#include "apps/subcommands.h"

namespace tandem::apps {

Result<int> run_options(const cli::Invocation& invocation) {
  fmt::print("{}", invocation.values.is_on("markdown") ? cli::configuration_markdown() : cli::option_list_text());
  return kExitDone;
}

}  // namespace tandem::apps
