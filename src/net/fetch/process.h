#pragma once
// run_program: another program, run to its end without a shell.

#include <string>
#include <vector>

#include "base/result.h"

namespace tandem::fetch {

// `arguments[0]` is looked up in PATH. Standard input is empty, standard output goes to our standard error; what the
// program says on standard error is shown only when it fails, in the Error. Blocks. kNotFound: no such program.
// kInternal: it ended with another code than 0.
Status run_program(const std::vector<std::string>& arguments);

}  // namespace tandem::fetch
