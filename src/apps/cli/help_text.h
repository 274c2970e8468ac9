#pragma once
// Texts made from the declarations: what --help prints, and docs/configuration.md.

#include <string>

#include "apps/cli/command.h"

namespace tandem::cli {

std::string overview_text();                        // `tandem --help`
std::string help_text(const CommandSpec& command);  // `tandem serve --help`
std::string configuration_markdown();               // docs/configuration.md
std::string option_list_text();                     // `tandem options`: one line an option

}  // namespace tandem::cli
