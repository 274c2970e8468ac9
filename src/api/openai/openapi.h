#pragma once
// The description of the HTTP API, openapi.json beside this file, as GET /openapi.json answers it.

#include <string_view>

namespace tandem::openai {

std::string_view openapi_json();  // its definition is made of the file by the build

}  // namespace tandem::openai
