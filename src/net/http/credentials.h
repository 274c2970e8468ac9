#pragma once
// Who asks: the key that a request carries, compared in constant time, and whether it comes from this machine itself.

#include <string_view>

#include "net/http/http_types.h"

namespace tandem::http {

// Of `Authorization: Bearer KEY`, else of `X-Api-Key: KEY`; empty: none.
std::string_view given_key(const HttpRequest& request);

// Takes as long for every wrong key of one length.
bool is_same_key(std::string_view given, std::string_view known);

// Sent by a program on this machine for itself: from a loopback address, and neither passed on by a proxy nor made by a
// web page, which a browser on this machine would send too.
bool is_local(const HttpRequest& request);

}  // namespace tandem::http
