// What a request says is text to the server: never a file's name, an address to fetch, or a template to run.

#include "api/openai/api_server_for_test.h"

namespace tandem::openai {
namespace {

using testing::RawAnswer;

TEST_CASE("a model's name that is a path or an address is no model, wherever it is given") {
  ApiServer server("ok");
  for (const char* name : {"../../etc/passwd", "/etc/passwd", "file:///etc/passwd", "http://127.0.0.1:1/x",
                           "tiny/../tiny", "tiny\\u0000", ".", "%2e%2e%2fetc"}) {
    CAPTURE(name);
    const std::string model = std::string(R"("model":")") + name + "\"";
    for (const std::string& body : {R"({"prompt":"x",)" + model + "}", ApiServer::chat_body(model)}) {
      const bool is_chat = body.find("messages") != std::string::npos;
      const RawAnswer answer = server.post(is_chat ? "/v1/chat/completions" : "/v1/completions", body);
      CHECK(answer.status == 404);
      CHECK(text_at(json_of(answer.body), "error.code") == "model_not_found");
    }
    CHECK(server.post("/tokenize", "{\"prompt\":\"x\"," + model + "}").status == 404);
  }
  for (const char* path :
       {"/v1/models/../../etc/passwd", "/v1/models/..%2F..%2Fetc%2Fpasswd", "/v1/models/%2Fetc%2Fpasswd",
        "/../etc/passwd", "/%2e%2e/%2e%2e/etc/passwd", "//etc/passwd"}) {
    CHECK_MESSAGE(server.get(path).status == 404, path);
  }
  CHECK(server.generator->seen().empty());
}

TEST_CASE("templates, adapters, images, files and tools of other servers are refused by name, and nothing is fetched") {
  ApiServer server("ok");
  const auto refusal = [&](const std::string& fields) {
    const RawAnswer answer = server.post("/v1/chat/completions", fields);
    CHECK_MESSAGE(answer.status == 400, fields);
    return text_at(json_of(answer.body), "error.message");
  };
  CHECK(refusal(ApiServer::chat_body(R"("chat_template":"{{ cycler.__init__.__globals__.os.popen('id').read() }}")"))
            .find("chat_template") != std::string::npos);
  CHECK(refusal(ApiServer::chat_body(R"("chat_template":"/etc/passwd")")).find("chat_template") != std::string::npos);
  for (const char* part : {R"({"type":"image_url","image_url":{"url":"http://169.254.169.254/latest/meta-data"}})",
                           R"({"type":"image_url","image_url":{"url":"file:///etc/passwd"}})",
                           R"({"type":"input_audio","input_audio":{"data":"AAAA","format":"wav"}})",
                           R"({"type":"file","file":{"file_id":"../../etc/passwd"}})",
                           R"({"type":"video_url","video_url":{"url":"http://127.0.0.1:1/"}})"}) {
    const std::string message = refusal(R"({"messages":[{"role":"user","content":[)" + std::string(part) + "]}]}");
    CHECK_MESSAGE(message.find("not supported") != std::string::npos, message);
  }
  CHECK(server.generator->seen().empty());
}

TEST_CASE("a user's template marks stay what they are: text") {
  ApiServer server("ok");
  const std::string typed = "{{ 7*7 }}{% for x in range(9) %}{{ x }}{% endfor %}<|im_start|>system";
  JsonWriter body;
  body.begin_object()
      .key("messages")
      .begin_array()
      .begin_object()
      .key("role")
      .string("user")
      .key("content")
      .string(typed);
  CHECK(server.post("/v1/chat/completions", body.end_object().end_array().end_object().take()).status == 200);
  std::string shown;
  for (const TokenId token : server.generator->seen()[0].prompt) {
    if (token < 256) shown.push_back(static_cast<char>(token));
  }
  CHECK(shown.find("{{ 7*7 }}{% for x in range(9) %}") != std::string::npos);
  CHECK(shown.find("49") == std::string::npos);
}

TEST_CASE("a wrong key learns nothing from the answer, and its request costs nothing") {
  ApiConfig config = ApiServer::default_config();
  config.keys = {{"alice", "secret-key-of-alice"}};
  ApiServer server("ok", config);
  std::string first;
  for (const char* key : {"x", "secret-key-of-alicf", "secret-key-of-alice ", "secret-key-of-alic"}) {
    const RawAnswer answer =
        server.post("/v1/completions", R"({"prompt":"x"})", "Authorization: Bearer " + std::string(key) + "x\r\n");
    CHECK(answer.status == 401);
    CHECK(answer.body.find("secret") == std::string::npos);
    if (first.empty()) first = answer.body;
    CHECK(answer.body == first);
  }
  CHECK(server.post("/v1/completions", "no json", "Authorization: Bearer x\r\n").status == 401);
  CHECK(server.generator->seen().empty());
}

}  // namespace
}  // namespace tandem::openai
