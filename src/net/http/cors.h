#pragma once
// Cross-origin requests: which web pages may read the API's answers in a browser. None unless their origin is listed.
// Source: https://fetch.spec.whatwg.org/#http-cors-protocol

#include <string>
#include <vector>

#include "base/result.h"
#include "net/http/http_types.h"

namespace tandem::http {

// kInvalidArgument unless it is "*" or SCHEME://HOST[:PORT], as browsers send it: no path, no slash at the end.
Status check_origin(const std::string& origin);

// `handler` with answers that pages of these origins may read, and preflight requests answered for it. Pages of others
// get the same answers without the headers, which their browser then keeps from them. Empty: `handler` itself.
Handler with_cors(std::vector<std::string> origins, Handler handler);

}  // namespace tandem::http
