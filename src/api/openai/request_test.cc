#include "api/openai/request.h"

#include <doctest/doctest.h>

#include "api/openai/field_reader.h"
#include "base/utf8.h"

namespace tandem::openai {
namespace {

const RequestLimits kLimits = {1000, 20, 16, 64, 64};

std::string chat_fault(const std::string& fields) {
  const auto parsed = parse_chat_request(R"({"messages":[{"role":"user","content":"x"}],)" + fields + "}", kLimits, {});
  const ApiError* error = std::get_if<ApiError>(&parsed);
  if (!error) return "accepted";
  CHECK(error->status == 400);
  CHECK(error->type == "invalid_request_error");
  CHECK(error->message.starts_with(error->param));
  return error->message;
}

std::string completion_fault(const std::string& body) {
  const auto parsed = parse_completion_request(body, kLimits, {});
  const ApiError* error = std::get_if<ApiError>(&parsed);
  return error ? error->message : "accepted";
}

TEST_CASE("an absent field, null and unknown fields change nothing") {
  const auto parsed = parse_completion_request(
      R"({"prompt":"x","stop":null,"max_tokens":null,"temperature":null,"n":null,"logprobs":null,"seed":null,
          "stream_options":null,"response_format":null,"best_of":null,"suffix":null,"logit_bias":null,
          "user":"me","metadata":{"a":1},"service_tier":"auto","store":true,"never_heard_of":[1]})",
      kLimits, {0.7f, 0.9f, 40, 0.05f, 1.1f});
  const auto* request = std::get_if<CompletionRequest>(&parsed);
  REQUIRE(request);
  CHECK(request->options.sampling.temperature == 0.7f);
  CHECK(request->options.sampling.top_k == 40);
  CHECK(request->options.sampling.repetition_penalty == 1.1f);
  CHECK(request->options.sampling.num_logprobs == -1);
  CHECK(!request->options.max_tokens);
  CHECK(!request->options.seed);
  CHECK(request->options.num_choices == 1);
  CHECK(request->options.stops.empty());
}

TEST_CASE("integers may be written with a fraction of zero; members that nobody reads are known") {
  const auto parsed =
      parse_completion_request(R"({"prompt":"x","max_tokens":16.0,"n":2.0,"top_k":4e1})", kLimits, {});
  const auto* request = std::get_if<CompletionRequest>(&parsed);
  REQUIRE(request);
  CHECK(request->options.max_tokens == 16u);
  CHECK(request->options.num_choices == 2);
  CHECK(request->options.sampling.top_k == 40);
  CHECK(chat_fault(R"("max_tokens":1.5)") == "max_tokens: expected an integer not below 0, got 1.5");
  CHECK(chat_fault(R"("max_tokens":1e300)") != "accepted");
  CHECK(chat_fault(R"("max_tokens":-1.0)") != "accepted");
  CHECK(chat_fault(R"("n":1.5)") != "accepted");

  const auto json = JsonValue::parse(R"({"a":1,"b":null,"c":[]})");
  REQUIRE(bool(json));
  FieldReader fields(json.value());
  fields.integer("a", 0, 0, 9);
  fields.flag("d", false);
  CHECK(fields.unread() == std::vector<std::string_view>{"b", "c"});
}

TEST_CASE("a model's generation_config.json gives defaults in the ranges of requests") {
  auto defaults = parse_generation_config(
      R"({"do_sample":true,"eos_token_id":[1,2],"temperature":0.6,"top_p":0.9,"top_k":20,"max_new_tokens":2048})");
  REQUIRE(bool(defaults));
  CHECK(defaults->temperature == 0.6f);
  CHECK(defaults->top_p == 0.9f);
  CHECK(defaults->top_k == 20);
  CHECK(defaults->min_p == 0);
  CHECK(defaults->repetition_penalty == 1);
  CHECK(parse_generation_config("{}")->temperature == 1);
  CHECK(parse_generation_config(R"({"top_p":7})").error().message == "top_p: expected a number from 0 to 1, got 7");
  CHECK(!parse_generation_config("[]"));
  CHECK(!parse_generation_config("{"));
}

TEST_CASE("all fields arrive") {
  const auto parsed = parse_chat_request(
      R"({"messages":[{"role":"user","content":"x"}],"model":"m","temperature":0,"top_p":0.5,"top_k":-1,"min_p":0.1,
          "repetition_penalty":1.2,"presence_penalty":-2,"frequency_penalty":2,"logit_bias":{"5":-100,"999":100},
          "seed":-1,"n":16,"best_of":16,"max_tokens":3,"max_completion_tokens":4,"min_tokens":2,"ignore_eos":true,
          "stop":["a","b"],"stop_token_ids":[0,999],"include_stop_str_in_output":true,"skip_special_tokens":false,
          "stream":true,"stream_options":{"include_usage":true,"continuous_usage_stats":true},"logprobs":true,
          "top_logprobs":20,"return_token_ids":true,"return_tokens_as_token_ids":true,"priority":-3,
          "cache_salt":"s","truncate_prompt_tokens":9,"deadline_ms":1500,"tool_choice":"auto",
          "chat_template_kwargs":{"enable_thinking":false},"response_format":{"type":"text"}})",
      kLimits, {});
  const auto* request = std::get_if<ChatRequest>(&parsed);
  REQUIRE(request);
  const GenerationOptions& options = request->options;
  CHECK(options.sampling.temperature == 0);
  CHECK(options.sampling.top_k == -1);
  CHECK(options.sampling.logit_bias == std::vector<std::pair<TokenId, float>>{{5, -100}, {999, 100}});
  CHECK(options.seed == UINT64_MAX);
  CHECK(options.num_choices == 16);
  CHECK(options.max_tokens == 4u);
  CHECK(options.min_tokens == 2);
  CHECK(options.ignore_eos);
  CHECK(options.stops == std::vector<std::string>{"a", "b"});
  CHECK(options.stop_token_ids == std::vector<TokenId>{0, 999});
  CHECK(options.include_stop);
  CHECK(!options.skip_special);
  CHECK(options.is_stream);
  CHECK(options.include_usage);
  CHECK(options.continuous_usage);
  CHECK(options.sampling.num_logprobs == 20);
  CHECK(options.priority == -3);
  CHECK(options.deadline_ms == 1500);
  CHECK(options.truncate_prompt_tokens == 9u);
  CHECK(request->prompt.template_variables.at(0).first == "enable_thinking");
}

TEST_CASE("a wrong field is named, with what was expected and what came") {
  CHECK(chat_fault(R"("temperature":"hot")") == "temperature: expected a number from 0 to 2, got a string");
  CHECK(chat_fault(R"("temperature":999999)") == "temperature: expected a number from 0 to 2, got 999999");
  CHECK(chat_fault(R"("top_p":-1)") == "top_p: expected a number from 0 to 1, got -1");
  CHECK(chat_fault(R"("repetition_penalty":0)") == "repetition_penalty: expected a number from 0.01 to 100, got 0");
  CHECK(chat_fault(R"("n":0)") == "n: expected an integer from 1 to 16, got 0");
  CHECK(chat_fault(R"("n":true)") == "n: expected an integer from 1 to 16, got true");
  CHECK(chat_fault(R"("n":3,"best_of":2)") == "best_of: 2 is less than n, 3");
  CHECK(chat_fault(R"("best_of":2,"stream":true)").starts_with("best_of: more than n cannot be streamed"));
  CHECK(chat_fault(R"("best_of":17)") == "best_of: expected an integer from 1 to 16, got 17");
  CHECK(chat_fault(R"("prompt_logprobs":0,"stream":true)") == "prompt_logprobs: cannot be streamed");
  CHECK(chat_fault(R"("prompt_logprobs":21)") == "prompt_logprobs: expected an integer from 0 to 20, got 21");
  CHECK(chat_fault(R"("bad_words":["a"," "])") == "bad_words: holds an empty word");
  CHECK(chat_fault(R"("allowed_token_ids":[])") == "allowed_token_ids: is empty");
  CHECK(chat_fault(R"("allowed_token_ids":[1000])") == "allowed_token_ids: expected token ids from 0 to 999, got 1000");
  CHECK(chat_fault(R"("continue_final_message":true,"add_generation_prompt":true)") ==
        "continue_final_message: cannot be had with add_generation_prompt");
  CHECK(chat_fault(R"("stop":[1])") == "stop: expected a list of strings, got 1");
  CHECK(chat_fault(R"("stop":"")") == "stop: an empty stop string would stop at once");
  CHECK(chat_fault(R"("stop_token_ids":[1000])") == "stop_token_ids: expected token ids from 0 to 999, got 1000");
  CHECK(chat_fault(R"("logit_bias":{"1000":1})") == "logit_bias: expected token ids from 0 to 999 as keys");
  CHECK(chat_fault(R"("logit_bias":{"x":1})") == "logit_bias: expected token ids from 0 to 999 as keys");
  CHECK(chat_fault(R"("logit_bias":{"1":1e30})") == "logit_bias: expected numbers from -100 to 100, got 1e+30");
  CHECK(chat_fault(R"("stream":1)") == "stream: expected a boolean, got 1");
  CHECK(chat_fault(R"("stream_options":{"include_usage":"yes"})") ==
        "stream_options.include_usage: expected a boolean, got a string");
  CHECK(chat_fault(R"("top_logprobs":3)") == "top_logprobs: needs logprobs to be true");
  CHECK(chat_fault(R"("logprobs":true,"top_logprobs":21)") == "top_logprobs: expected an integer from 0 to 20, got 21");
  CHECK(chat_fault(R"("min_tokens":5,"max_tokens":4)") == "min_tokens: 5 is more than max_tokens, 4");
  CHECK(chat_fault(R"("model":7)") == "model: expected a string, got 7");
  CHECK(chat_fault(R"("seed":1.5)") == "seed: expected an integer, got 1.5");
  CHECK(chat_fault(R"("tools":{})") == "tools: expected a list, got an object");
  CHECK(completion_fault(R"({"prompt":5})") ==
        "prompt: expected a string, a list of strings, of token ids, or of lists of token ids, got 5");
  CHECK(completion_fault(R"({"prompt":["a",1]})").starts_with("prompt: expected a string"));
  CHECK(completion_fault(R"({"prompt":[1,"a"]})") == "prompt: expected token ids from 0 to 999, got a string");
  CHECK(completion_fault(R"({"prompt":[1,-1]})") == "prompt: expected token ids from 0 to 999, got -1");
  CHECK(completion_fault(R"({"prompt":"x","suffix":"y","echo":true})") == "suffix: cannot be had with echo");
  CHECK(completion_fault(R"({"prompt":"x","logprobs":true})") ==
        "logprobs: expected an integer from 0 to 20, got true");
  CHECK(completion_fault(R"({"prompt":["a","b","c","d","e"],"n":16})") ==
        "n: 5 prompts with n = 16 are over 64 answers");
  CHECK(completion_fault("[]") == "the request's body: expected an object, got an array");
}

// The fault: fields that we do not do are passed over.
TEST_CASE("API-21: what is not enforced is refused, never ignored") {
  for (const char* fields :
       {R"("response_format":"text")", R"("response_format":{})", R"("grammar":"x")", R"("json_schema":{})",
        R"("use_beam_search":true)", R"("prompt_embeds":"x")", R"("chat_template":"x")", R"("echo":true)",
        R"("max_tokens":0)"}) {
    CHECK_MESSAGE(chat_fault(fields) != "accepted", fields);
  }
}

TEST_CASE("a message of an error never repeats what may be a prompt, and is valid UTF-8") {
  const std::string fault = chat_fault(R"("stop":{"secret words":1})");
  CHECK(fault.find("secret") == std::string::npos);
  const auto parsed = parse_chat_request("{\"messages\":\"secret \xFF\"}", kLimits, {});
  const std::string json = error_json(std::get<ApiError>(parsed));
  CHECK(is_valid_utf8(json));
  CHECK(json.find("secret") == std::string::npos);
}

}  // namespace
}  // namespace tandem::openai
