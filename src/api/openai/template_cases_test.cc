// Known faults of servers with chat templates, each tried on ours; the names are those of the list they come from.

#include <doctest/doctest.h>

#include "api/openai/api_server_for_test.h"

namespace tandem::openai {
namespace {

// The shapes of well-known templates, cut down to what they do about roles.
constexpr std::string_view kMistral =
    "{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}{% endif %}"
    "{% if m.role == 'user' %}[INST] {{ m.content }} [/INST]{% else %}{{ m.content }}{% endif %}{% endfor %}";
constexpr std::string_view kGemma =
    "{% if messages[0].role == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}"
    "{% for m in messages %}<start_of_turn>{{ m.role }}\n{{ m.content }}<end_of_turn>\n{% endfor %}";
constexpr std::string_view kQwen =
    "{% for m in messages %}{% if m.role == 'system' and not loop.first %}"
    "{{ raise_exception('System message must be at the beginning.') }}{% endif %}"
    "<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}";
constexpr std::string_view kHarmony =
    "{% for m in messages %}{% if '<|channel|>' in m.content %}"
    "{{ raise_exception('Message contains <|channel|> tags; send only the final text.') }}{% endif %}"
    "<|start|>{{ m.role }}<|message|>{{ m.content }}<|end|>{% endfor %}";

void use_template(ApiServer& server, std::string_view source) {
  server.model.chat_template = text::must(text::ChatTemplate::compile(source));
}

std::string messages_of(const std::vector<std::string>& roles) {
  std::string out = R"({"messages":[)";
  for (size_t i = 0; i < roles.size(); ++i) {
    out += (i > 0 ? "," : "") + (R"({"role":")" + roles[i]) + R"(","content":"m)" + std::to_string(i) + "\"}";
  }
  return out + "]}";
}

// "" for an answer, else the message of the 400.
std::string refusal(const ApiServer& server, const std::string& body) {
  const auto answer = server.post("/v1/chat/completions", body);
  if (answer.status == 200) return {};
  CHECK_MESSAGE(answer.status == 400, answer.body);
  CHECK(text_at(json_of(answer.body), "error.param") == "messages");
  return text_at(json_of(answer.body), "error.message");
}

// The fault put in: a template's own error was reported as a server's (kInternal), and so as 500.
TEST_CASE("TPL-01 roles in an order that the template refuses are 400 with its own words, and nothing else is tried") {
  const std::string alternate =
      "the chat template refuses the request: Conversation roles must alternate user/assistant/user/assistant/...";
  const std::string first = "the chat template refuses the request: System message must be at the beginning.";
  const std::string no_system = "the chat template refuses the request: System role not supported";
  struct Order {
    std::vector<std::string> roles;
    std::string mistral, gemma, qwen;
  };
  const std::vector<Order> orders = {
      {{"user"}, "", "", ""},
      {{"user", "assistant", "user"}, "", "", ""},
      {{"user", "user", "assistant"}, alternate, "", ""},
      {{"assistant", "user"}, alternate, "", ""},
      {{"system", "user"}, alternate, no_system, ""},
      {{"user", "system", "user"}, "", "", first},
  };
  ApiServer server("ok");
  for (const Order& order : orders) {
    const std::string body = messages_of(order.roles);
    const size_t num_before = server.generator->seen().size();
    use_template(server, kMistral);
    CHECK(refusal(server, body) == order.mistral);
    use_template(server, kGemma);
    CHECK(refusal(server, body) == order.gemma);
    use_template(server, kQwen);
    CHECK(refusal(server, body) == order.qwen);
    use_template(server, kChatMl);
    CHECK(refusal(server, body).empty());
    const size_t num_right = 1 + order.mistral.empty() + order.gemma.empty() + order.qwen.empty();
    CHECK(server.generator->seen().size() == num_before + num_right);
  }
}

// The fault put in: as for TPL-01.
TEST_CASE("TPL-02 a system message to a model without that role is 400, in the template's words") {
  ApiServer server("ok");
  use_template(server, kGemma);
  CHECK(refusal(server, messages_of({"system", "user"})) ==
        "the chat template refuses the request: System role not supported");
  CHECK(refusal(server, messages_of({"user"})).empty());
}

// The fault put in: of several parts only the last one was kept.
TEST_CASE("TPL-03 a content of text parts is its texts, joined by line breaks, in order") {
  ApiServer server("ok");
  const auto prompt_of = [&](const std::string& content) {
    const JsonValue answer =
        server.ok("/v1/chat/completions", R"({"messages":[{"role":"user","content":)" + content + "}]}");
    CHECK(text_at(answer, "choices.0.message.content") == "ok");
    return server.generator->seen().back().prompt;
  };
  CHECK(prompt_of(R"([{"type":"text","text":"A"},{"type":"text","text":"B"}])") == prompt_of(R"("A\nB")"));
  CHECK(prompt_of(R"([{"type":"text","text":"A"}])") == prompt_of(R"("A")"));
  const auto other = server.post("/v1/chat/completions",
                                 R"({"messages":[{"role":"user","content":[{"type":"input_audio"}]}]})");
  CHECK(other.status == 400);
  CHECK(text_at(json_of(other.body), "error.param") == "messages[0].content");
}

// The fault put in: the model did not load.
TEST_CASE("TPL-05 with a template that does not compile chats are 400 with its line, completions work") {
  ApiServer server("ok");
  server.model = text::must(text::text_model_from_parts(text::byte_level_parts(), "a\n{% if %}b"));
  const auto answer = server.post("/v1/chat/completions", ApiServer::chat_body());
  CHECK(answer.status == 400);
  const std::string message = text_at(json_of(answer.body), "error.message");
  CHECK(message.find("can not be compiled") != std::string::npos);
  CHECK(message.find("2") != std::string::npos);
  CHECK(text_at(json_of(answer.body), "error.code") == "no_chat_template");
  CHECK(text_at(server.complete(R"("prompt":"x")"), "choices.0.text") == "ok");
  use_template(server,
               "{% for m in messages %}{% if loop.index > 1 %}{% break %}{% endif %}{{ m.content }}"
               "{% generation %}{% endgeneration %}{% endfor %}{{ strftime_now('%Y')[:2] }}");
  CHECK(refusal(server, messages_of({"user", "user"})).empty());
  CHECK(server.model.tokenizer.decode(server.generator->seen().back().prompt, false) == "m020");
}

// The fault put in: special tokens were shown in the content of chats.
TEST_CASE("TPL-06 the second turn works with what the first one gave; the raw tags are 400, not 500") {
  ApiServer server;
  use_template(server, kHarmony);
  server.script = [](const sched::Request&, uint32_t) {
    std::vector<TokenId> tokens = {text::kImStart};  // a special token, as the channel tags are
    for (TokenId token : byte_tokens("final answer")) tokens.push_back(token);
    return Script{tokens, {}, 0};
  };
  const std::string user = R"({"role":"user","content":"hi"})";
  const JsonValue first = server.ok("/v1/chat/completions", R"({"messages":[)" + user + "]}");
  const std::string content = text_at(first, "choices.0.message.content");
  CHECK(content == "final answer");
  const std::string replay = json_at(first, "choices.0.message");
  CHECK(refusal(server, R"({"messages":[)" + user + "," + replay + "," + user + "]}").empty());
  const std::string raw = R"({"role":"assistant","content":"<|channel|>final<|message|>x"})";
  CHECK(refusal(server, R"({"messages":[)" + user + "," + raw + "," + user + "]}") ==
        "the chat template refuses the request: Message contains <|channel|> tags; send only the final text.");
}

}  // namespace
}  // namespace tandem::openai
