#pragma once
// Router: path and method to a handler; 404, 405 with Allow, HEAD and OPTIONS come by themselves.

#include <map>
#include <string>

#include "net/http/http_types.h"

namespace tandem::http {

// Filled once, then used from any thread.
class Router {
 public:
  explicit Router(ErrorBody error_body) : error_body_(std::move(error_body)) {}

  // A path that ends in '*' takes everything that begins with what is before it; exact paths go first.
  void add(std::string method, std::string path, Handler handler);

  void operator()(HttpRequest request, std::shared_ptr<ResponseWriter> writer) const;

 private:
  using Methods = std::map<std::string, Handler>;
  const Methods* find(const std::string& path) const;

  std::map<std::string, Methods> routes_;
  ErrorBody error_body_;
};

}  // namespace tandem::http
