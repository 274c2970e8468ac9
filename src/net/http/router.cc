#include "net/http/router.h"

namespace tandem::http {

void Router::add(std::string method, std::string path, Handler handler) {
  routes_[std::move(path)][std::move(method)] = std::move(handler);
}

const Router::Methods* Router::find(const std::string& path) const {
  const auto exact = routes_.find(path);
  if (exact != routes_.end()) return &exact->second;
  for (const auto& [known, methods] : routes_) {
    if (known.back() == '*' && path.starts_with(std::string_view(known).substr(0, known.size() - 1))) return &methods;
  }
  return nullptr;
}

void Router::operator()(HttpRequest request, std::shared_ptr<ResponseWriter> writer) const {
  const Headers json = {{"Content-Type", "application/json"}};
  const Methods* methods = find(request.path);
  if (!methods) {
    writer->send(404, json, error_body_(404, "unknown path " + request.path, request.path));
    return;
  }
  // The server leaves out the body of an answer to HEAD.
  const auto handler = methods->find(request.method == "HEAD" ? "GET" : request.method);
  if (handler != methods->end()) {
    handler->second(std::move(request), std::move(writer));
    return;
  }
  std::string allowed = "OPTIONS";
  for (const auto& [method, unused] : *methods) allowed += (method == "GET" ? ", GET, HEAD" : ", " + method);
  if (request.method == "OPTIONS") {
    writer->send(204, {{"Allow", allowed}}, {});
    return;
  }
  Headers headers = json;
  headers.emplace_back("Allow", allowed);
  const std::string message = request.path + " does not take " + request.method + ", only " + allowed;
  writer->send(405, headers, error_body_(405, message, request.path));
}

}  // namespace tandem::http
