#pragma once
// The file of --api-key-file: who may use the API, with what weight and how much at once.
//
//   # one key a line: NAME KEY [weight=NUMBER] [max-concurrent=NUMBER]
//   alice  sk-3f9a...  weight=2
//   batch  sk-77c1...  weight=0.5 max-concurrent=8

#include <string>
#include <string_view>
#include <vector>

#include "api/openai/openai_api.h"
#include "base/result.h"

namespace tandem::openai {

// kInvalidArgument names the line and what is wrong with it, and never shows a key.
Result<std::vector<ApiKey>> parse_key_file(std::string_view text);

}  // namespace tandem::openai
