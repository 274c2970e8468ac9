// Answers that have to fit a form: they do, streamed and whole, and what cannot be held to is refused before it begins.

#include <doctest/doctest.h>

#include <atomic>
#include <cctype>
#include <functional>
#include <set>
#include <thread>

#include "api/openai/engine_server_for_test.h"

namespace tandem::openai {
namespace {

using testing::RawAnswer;

constexpr const char* kPerson = R"({"type":"object","properties":{"name":{"type":"string","maxLength":8},)"
                                R"("age":{"type":"integer","minimum":0,"maximum":150},"kind":{"enum":["cat","dog"]},)"
                                R"("tags":{"type":"array","items":{"type":"boolean"},"maxItems":3}},)"
                                R"("required":["name","age","kind","tags"],"additionalProperties":false})";

std::string schema_format(std::string_view schema, std::string_view more = {}) {
  return R"("response_format":{"type":"json_schema","json_schema":{"name":"x","schema":)" + std::string(schema) +
         std::string(more) + "}}";
}

// Any token may come where the grammar lets it.
struct FormServer : EngineServer {
  explicit FormServer(const text::GrammarConfig& grammar_config = {})
      : EngineServer(small_config(), grammar_config, 0) {}

  JsonValue ok(const std::string& fields) const {
    const RawAnswer answer = complete(fields);
    CHECK_MESSAGE(answer.status == 200, answer.body);
    return json_of(answer.body);
  }
  // What is refused, as "param: message"; the status has to be 400.
  std::string refusal(const std::string& fields) const {
    const RawAnswer answer = complete("\"prompt\":\"x\"," + fields);
    CHECK_MESSAGE(answer.status == 400, fields << " " << answer.body);
    const JsonValue error = json_of(answer.body);
    CHECK(text_at(error, "error.type") == "invalid_request_error");
    return text_at(error, "error.param") + " | " + text_at(error, "error.message");
  }
  std::string metric(const std::string& name) const {
    const std::string text = registry.exposition();
    const size_t from = text.find("\n" + name + " ");
    if (from == std::string::npos) return "(none)";
    const size_t value = from + name.size() + 2;
    return text.substr(value, text.find('\n', value) - value);
  }
};

// Any token that may come, from a place that seed and tokens decide; blanks rarely, for of them there may be any
// number.
TokenId any_allowed(const sched::BatchItem& item) {
  uint64_t hash = item.sampling->seed * 1000003 + item.sampling->choice;
  for (const TokenId token : item.tokens) hash = (hash ^ static_cast<uint64_t>(token)) * 0x9E3779B97F4A7C15u;
  hash ^= hash >> 29;
  std::vector<TokenId> all, visible;
  const auto allowed = item.mask->allowed();
  for (TokenId id = 0; allowed && id <= text::kToolCall; ++id) {
    if (!sched::is_allowed(allowed.value(), id)) continue;
    all.push_back(id);
    if (id != ' ' && id != '\t' && id != '\n' && id != '\r') visible.push_back(id);
  }
  const std::vector<TokenId>& from = visible.empty() || hash % 8 == 0 ? all : visible;
  return from.empty() ? text::kEnd : from[hash / 8 % from.size()];
}

void check_person(const std::string& text) {
  CAPTURE(text);
  const auto parsed = JsonValue::parse(text);
  REQUIRE(parsed);
  const JsonValue& person = parsed.value();
  REQUIRE(person.if_object());
  CHECK(person.if_object()->size() == 4);
  CHECK(at(person, "name").if_string());
  CHECK(num_code_points(text_at(person, "name")) <= 8);
  CHECK(int_at(person, "age") >= 0);
  CHECK(int_at(person, "age") <= 150);
  CHECK((text_at(person, "kind") == "cat" || text_at(person, "kind") == "dog"));
  REQUIRE(at(person, "tags").if_array());
  CHECK(at(person, "tags").if_array()->size() <= 3);
  for (const JsonValue& tag : *at(person, "tags").if_array()) CHECK(tag.if_bool());
}

// The fault: the mask was not handed to the executor, and not one answer was JSON.
TEST_CASE("API-21: fifty sampled answers parse and fit their schema, strict or not") {
  FormServer server;
  server.executor.set_next_token(any_allowed);
  std::set<std::string> texts;
  for (int seed = 0; seed < 50; ++seed) {
    const std::string strict = seed % 3 == 0 ? R"(,"strict":true)" : seed % 3 == 1 ? R"(,"strict":false)" : "";
    const JsonValue answer = server.ok(R"("prompt":"a person","max_tokens":900,"seed":)" + std::to_string(seed) + "," +
                                       schema_format(kPerson, strict));
    CHECK(text_at(answer, "choices.0.finish_reason") == "stop");
    check_person(text_at(answer, "choices.0.text"));
    texts.insert(text_at(answer, "choices.0.text"));
  }
  CHECK(texts.size() > 45);
  CHECK(server.metric("tandem_grammar_compile_seconds_count") == "1");
}

// The fault: the form is read and not kept to.
TEST_CASE("API-21: json_object is an object, each time that the answer is complete") {
  FormServer server;
  int num_complete = 0;
  for (int seed = 0; seed < 50; ++seed) {
    const std::string ask = R"("prompt":"x","max_tokens":300,"seed":)" + std::to_string(seed) + ",";
    const JsonValue answer = server.ok(ask + (seed % 2 == 0 ? R"("response_format":{"type":"json_object"})"
                                                            : R"("structured_outputs":{"json_object":true})"));
    const std::string text = text_at(answer, "choices.0.text");
    CHECK(text.find('{') != std::string::npos);
    if (text_at(answer, "choices.0.finish_reason") != "stop") continue;
    ++num_complete;
    const auto parsed = JsonValue::parse(text);
    REQUIRE_MESSAGE(parsed, text);
    CHECK(parsed.value().if_object());
  }
  CHECK(num_complete > 5);
}

TEST_CASE("each way of asking for a form is held to, in plain completions and in chat") {
  FormServer server;
  const auto is_two_digits = [](const std::string& text) {
    return text.size() == 3 && text[0] == 'n' && isdigit(text[1]) && isdigit(text[2]);
  };
  const auto is_word = [](const std::string& text) { return text == "yes" || text == "no" || text == "per\"haps"; };
  const auto is_sum = [](const std::string& text) {
    return text.size() >= 3 && text.find_first_not_of("0123456789+") == std::string::npos && isdigit(text.back()) &&
           text.find('+') != std::string::npos;
  };
  const auto is_pair = [](const std::string& text) {
    const auto parsed = JsonValue::parse(text);
    return parsed && at(parsed.value(), "a").if_bool();
  };
  const std::string words = R"(["yes","no","per\"haps"])", pattern = R"("n[0-9]{2}")";
  const std::string sum = R"("start: NUM (\"+\" NUM)+\nNUM: /[0-9]{1,2}/")";
  const std::string pair = R"({"type":"object","properties":{"a":{"type":"boolean"}},"required":["a"]})";
  const std::string as_text = JsonWriter().string(pair).take();
  const std::pair<std::string, std::function<bool(const std::string&)>> forms[] = {
      {R"("structured_outputs":{"regex":)" + pattern + "}", is_two_digits},
      {"\"guided_regex\":" + pattern, is_two_digits},
      {R"("structured_outputs":{"choice":)" + words + "}", is_word},
      {"\"guided_choice\":" + words, is_word},
      {R"("structured_outputs":{"grammar":)" + sum + "}", is_sum},
      {"\"guided_grammar\":" + sum, is_sum},
      {R"("structured_outputs":{"json":)" + pair + "}", is_pair},
      {R"("structured_outputs":{"json":)" + as_text + "}", is_pair},
      {"\"guided_json\":" + pair, is_pair},
      {R"("response_format":{"type":"json_object","schema":)" + pair + "}", is_pair},
      {R"("response_format":{"type":"text"},"guided_json":null,"structured_outputs":{"regex":)" + pattern + "}",
       is_two_digits}};
  for (const auto& [fields, fits] : forms) {
    CAPTURE(fields);
    for (int seed = 0; seed < 6; ++seed) {
      const std::string more = R"("max_tokens":400,"seed":)" + std::to_string(seed) + "," + fields;
      const JsonValue plain = server.ok("\"prompt\":\"x\"," + more);
      if (text_at(plain, "choices.0.finish_reason") == "stop") {
        CHECK_MESSAGE(fits(text_at(plain, "choices.0.text")), text_at(plain, "choices.0.text"));
      }
      const JsonValue chat = json_of(
          testing::fetch(server.server->port(), "POST", "/v1/chat/completions", ApiServer::chat_body(more), {}).body);
      if (text_at(chat, "choices.0.finish_reason") == "stop") {
        CHECK_MESSAGE(fits(text_at(chat, "choices.0.message.content")), text_at(chat, "choices.0.message.content"));
      }
    }
  }
}

// The fault: a schema whose pattern does not compile was answered with 200 and no grammar.
TEST_CASE("API-21: what does not compile or cannot be enforced is 400 with its field, before anything is sent") {
  FormServer server;
  CHECK(server.refusal(schema_format(R"({"type":"string","pattern":"("})", R"(,"strict":true)"))
            .starts_with("response_format.json_schema.schema | response_format.json_schema.schema: "));
  CHECK(server.refusal(R"("stream":true,)" + schema_format(R"({"type":"string","pattern":"("})"))
            .starts_with("response_format.json_schema.schema | "));
  const std::pair<const char*, const char*> wrong[] = {
      {R"("guided_regex":"(")", "guided_regex | guided_regex: "},
      {R"("structured_outputs":{"regex":"("})", "structured_outputs.regex | structured_outputs.regex: "},
      {R"("structured_outputs":{"grammar":"start: nothing"})", "structured_outputs.grammar | "},
      {R"("guided_json":{"type":"array","uniqueItems":true})", "guided_json | guided_json: "},
      {R"("guided_json":{"not":{}})", "guided_json | guided_json: "},
      {R"("guided_json":{"type":"nonsense"})", "guided_json | "},
      {R"("guided_json":{"$ref":"#/$defs/a","$defs":{"a":{"$ref":"#/$defs/a"}}})", "guided_json | "},
      {R"("response_format":{"type":"json_object","schema":{"type":"nonsense"}})", "response_format | "}};
  for (const auto& [fields, begin] : wrong) {
    CAPTURE(fields);
    const std::string refusal = server.refusal(fields);
    CHECK_MESSAGE(refusal.starts_with(begin), refusal);
    CHECK(server.refusal(std::string(R"("stream":true,)") + fields) == refusal);
  }
}

// The faults: of two forms the last one counts; members that are not supported are passed over.
TEST_CASE("API-21: a request asks for one form, in a way that is known; else 400 with the field") {
  FormServer server;
  const std::pair<const char*, const char*> wrong[] = {
      {R"("guided_regex":"a","guided_choice":["b"])",
       "guided_choice | guided_choice: guided_choice asks for one form of answer and guided_regex for another; give "
       "one "
       "of them"},
      {R"("response_format":{"type":"json_object"},"structured_outputs":{"regex":"a"})",
       "structured_outputs.regex | structured_outputs.regex: structured_outputs.regex asks for one form of answer and "
       "response_format for another; give one of them"},
      {R"("structured_outputs":{"regex":"a","json_object":true})",
       "structured_outputs.json_object | structured_outputs.json_object: structured_outputs.json_object asks for one "
       "form of answer and structured_outputs.regex for another; give one of them"},
      {R"("structured_outputs":{})",
       "structured_outputs | structured_outputs: one of json, regex, choice, grammar and json_object is needed"},
      {R"("structured_outputs":{"structural_tag":"x"})",
       "structured_outputs.structural_tag | structured_outputs.structural_tag: is not supported"},
      {R"("structured_outputs":{"regex":"a","disable_any_whitespace":true})",
       "structured_outputs.disable_any_whitespace | structured_outputs.disable_any_whitespace: is not supported"},
      {R"("structured_outputs":7)", "structured_outputs | structured_outputs: expected an object, got 7"},
      {R"("structured_outputs":{"choice":[]})",
       "structured_outputs.choice | structured_outputs.choice: expected a list of texts, got an array"},
      {R"("guided_choice":["a",""])", "guided_choice | guided_choice: expected texts that are not empty, got a string"},
      {R"("guided_json":"{")", "guided_json | guided_json: the text is "},
      {R"("guided_json":[1])", "guided_json | guided_json: expected a JSON schema, got an array"},
      {R"("guided_grammar":"root ::= \"a\"")", "guided_grammar | guided_grammar: EBNF (GBNF) is not supported"},
      {R"("response_format":{"type":"xml"})",
       "response_format.type | response_format.type: \"xml\" is not supported; \"text\", \"json_object\" and "
       "\"json_schema\" are"},
      {R"("response_format":{"type":"json_schema"})",
       "response_format.json_schema | response_format.json_schema: expected an object with name and schema, got null"},
      {R"("response_format":{"type":"json_schema","json_schema":{"name":"x"}})",
       "response_format.json_schema.schema | response_format.json_schema.schema: is missing"},
      {R"("response_format":{"type":"json_schema","json_schema":{"schema":{}}})",
       "response_format.json_schema.name | response_format.json_schema.name: is missing"},
      {R"("response_format":{"type":"json_schema","json_schema":{"name":"x","schema":{},"strict":"yes"}})",
       "response_format.json_schema.strict | response_format.json_schema.strict: expected a boolean, got a string"},
      {R"("guided_regex":"a","guided_whitespace_pattern":" ")",
       "guided_whitespace_pattern | guided_whitespace_pattern: is not supported"}};
  for (const auto& [fields, begin] : wrong) {
    CAPTURE(fields);
    const std::string refusal = server.refusal(fields);
    CHECK_MESSAGE(refusal.starts_with(begin), refusal);
  }
}

// The fault: the request is answered without its form.
TEST_CASE("API-21: a server without grammars refuses whoever asks for a form") {
  ApiServer server("{}");
  const RawAnswer answer = server.post("/v1/completions", R"({"prompt":"x","guided_json":{}})");
  CHECK(answer.status == 400);
  CHECK(text_at(json_of(answer.body), "error.param") == "guided_json");
}

TEST_CASE("a form and everything else: stops, limits, choices, logprobs, streams, and neighbours without one") {
  FormServer server;
  const std::string ask = R"("prompt":"mixed","max_tokens":60,"seed":3,)";
  const std::vector<std::string> fields = {ask + schema_format(kPerson) + R"(,"n":3)",
                                           ask + R"("guided_regex":"[a-z]{40}","logprobs":2)",
                                           ask + R"("guided_regex":"[a-z]{100}")",
                                           ask + R"("guided_regex":"[a-c]{50}","stop":["zz","aaaaaaa"])",
                                           ask + R"("guided_choice":["hello"],"ignore_eos":true,"min_tokens":20)",
                                           ask + R"("guided_regex":"x*","min_tokens":9,"n":2)",
                                           ask + R"("n":2)",
                                           ask + R"("logprobs":1,"stop":["z"])"};
  std::vector<std::string> alone;
  for (const std::string& request : fields) {
    alone.push_back(json_at(server.ok(request), "choices"));
    const auto events = events_of(server.complete(request + R"(,"stream":true)").body);
    const JsonValue whole = json_of("{\"choices\":" + alone.back() + "}");
    for (size_t c = 0; c < at(whole, "choices").if_array()->size(); ++c) {
      const Streamed streamed = streamed_choice(events, static_cast<int64_t>(c));
      CHECK(streamed.text == text_at(whole, "choices." + std::to_string(c) + ".text"));
      CHECK(streamed.finish_reason == text_at(whole, "choices." + std::to_string(c) + ".finish_reason"));
    }
  }
  const JsonValue by_length = json_of("{\"choices\":" + alone[2] + "}"),
                  by_stop = json_of("{\"choices\":" + alone[3] + "}"),
                  by_grammar = json_of("{\"choices\":" + alone[4] + "}");
  CHECK(text_at(by_length, "choices.0.finish_reason") == "length");
  CHECK(text_at(by_length, "choices.0.text").size() >= 60);  // some tokens are longer than a letter
  CHECK(text_at(by_length, "choices.0.text").size() < 100);
  CHECK(text_at(by_stop, "choices.0.finish_reason") == "stop");
  CHECK(text_at(by_stop, "choices.0.text").size() < 48);
  CHECK(text_at(by_grammar, "choices.0.finish_reason") == "stop");
  CHECK(text_at(by_grammar, "choices.0.text") == "hello");
  std::vector<std::thread> clients;
  std::atomic<int> num_equal{0};
  for (size_t i = 0; i < 2 * fields.size(); ++i) {
    clients.emplace_back([&, at_field = i % fields.size()] {
      const RawAnswer answer = server.complete(fields[at_field]);
      auto parsed = JsonValue::parse(answer.body);
      if (parsed && json_at(*parsed, "choices") == alone[at_field]) ++num_equal;
    });
  }
  for (auto& client : clients) client.join();
  CHECK(num_equal == static_cast<int>(2 * fields.size()));
}

TEST_CASE("a grammar that costs too much ends its request with 400, or with an event, and no other") {
  text::GrammarConfig config;
  config.slow_s = 0;
  config.budget_s = 0;  // the first mask is over it
  FormServer server(config);
  const RawAnswer answer = server.complete(R"("prompt":"x","guided_regex":"a+")");
  CHECK(answer.status == 400);
  CHECK(text_at(json_of(answer.body), "error.message").find("takes too long") != std::string::npos);
  const auto events = events_of(server.complete(R"("prompt":"x","guided_regex":"a+","stream":true)").body);
  CHECK(text_at(events.back(), "error.message").find("takes too long") != std::string::npos);
  CHECK(server.complete(R"("prompt":"x","max_tokens":3)").status == 200);
  CHECK(server.metric(R"(tandem_grammar_failures_total{stage="budget"})") == "2");
}

TEST_CASE("stop ids that the grammar needs, banned by min_tokens, end that request alone") {
  FormServer server;
  const RawAnswer answer =
      server.complete(R"("prompt":"x","guided_regex":"a{9}","stop_token_ids":[97],"min_tokens":5,"max_tokens":9)");
  CHECK(answer.status == 400);
  CHECK(server.complete(R"("prompt":"x","guided_regex":"a{9}")").status == 200);
}

TEST_CASE("a grammar is compiled once for a request, though none is kept") {
  // The fault: between check and start others pushed it out, and it was compiled again where all requests are computed.
  text::GrammarConfig config;
  config.max_kept = 0;
  FormServer server(config);
  server.ok(R"("prompt":["x","y"],"max_tokens":5,"n":2,"guided_regex":"a+")");
  CHECK(server.metric("tandem_grammar_compile_seconds_count") == "1");
}

}  // namespace
}  // namespace tandem::openai
