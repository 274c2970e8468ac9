#include "api/openai/prompt_text.h"

#include <fmt/format.h>

#include <algorithm>

namespace tandem::openai {
namespace {

// All of one request: of an answer's JSON, and of the time that its thread needs for it.
constexpr size_t kMaxShownScores = 4 << 20;
constexpr size_t kMaxEchoBytes = 32 << 20;
constexpr size_t kMaxSuffixIds = 4 << 20;
constexpr size_t kScoresPerToken = 4;  // what a token shown costs beside the likeliest ones at its place

void truncate_left(std::vector<TokenId>& ids, const GenerationOptions& options) {
  if (!options.truncate_prompt_tokens || *options.truncate_prompt_tokens >= ids.size()) return;
  ids.erase(ids.begin(), ids.end() - static_cast<ptrdiff_t>(*options.truncate_prompt_tokens));
}

// What text the template sees.
std::string template_context(const ChatPrompt& prompt, const text::TextModel& model) {
  JsonWriter json;
  json.begin_object();
  // The client's variables come first: of two members with one name the later one counts, and that is ours.
  for (const auto& [name, value] : prompt.template_variables) json.key(name).value(value);
  json.key("messages").begin_array();
  for (const JsonValue& message : prompt.messages) json.value(message);
  json.end_array();
  if (prompt.tools) json.key("tools").value(*prompt.tools);
  if (prompt.documents) json.key("documents").value(*prompt.documents);
  json.key("add_generation_prompt").boolean(prompt.add_generation_prompt);
  json.key("bos_token").string(model.bos_text).key("eos_token").string(model.eos_text);
  return json.end_object().take();
}

// The same with another text for the last message.
ChatPrompt with_last_text(ChatPrompt prompt, const std::string& text) {
  JsonValue::Object members = *prompt.messages.back().if_object();
  for (auto& [key, value] : members) {
    if (key == "content") value = JsonValue(text);
  }
  prompt.messages.back() = JsonValue(std::move(members));
  return prompt;
}

ApiError too_long(const std::string& num_tokens, uint32_t max_model_len) {
  return invalid_request(
      {},  // the caller knows the field
      fmt::format("the prompt has {} tokens; the model takes {}, and at least one must be left for the "
                  "answer",
                  num_tokens, max_model_len),
      "context_length_exceeded");
}

}  // namespace

PromptText::PromptText(const text::TextModel& model, uint32_t max_model_len, bool parse_special)
    : model_(model), max_model_len_(max_model_len), parse_special_(parse_special) {
  for (size_t id = 0; id < model.tokenizer.vocab_size(); ++id) {
    longest_token_bytes_ = std::max(longest_token_bytes_, model.tokenizer.token_bytes(static_cast<TokenId>(id)).size());
  }
  const auto with_added = model.tokenizer.encode("a", {.add_special = true});
  adds_end_ = with_added && !with_added->empty() && model.tokenizer.eos() == with_added->back();
}

std::optional<ApiError> PromptText::check_text_size(size_t size_bytes) const {
  const size_t fewest_tokens = size_bytes / longest_token_bytes_;
  if (fewest_tokens <= max_model_len_) return std::nullopt;
  return too_long(fmt::format("at least {}", fewest_tokens), max_model_len_);
}

Parsed<std::vector<TokenId>> PromptText::chat_ids(const ChatPrompt& prompt, const GenerationOptions& options) const {
  const text::ChatTemplate* chat_template = model_.template_for(prompt.tools.has_value());
  if (!chat_template && !model_.template_error.empty()) {
    return invalid_request("messages",
                           "the model's chat template can not be compiled: " + model_.template_error +
                               "; start the server with --chat-template FILE, or use /v1/completions",
                           "no_chat_template");
  }
  if (!chat_template) {
    return invalid_request("messages",
                           "the model has no chat template; start the server with --chat-template FILE, or use "
                           "/v1/completions",
                           "no_chat_template");
  }
  const std::string context = template_context(prompt, model_);
  if (auto error = check_text_size(context.size()); error && !options.truncate_prompt_tokens) {
    error->param = "messages";
    return *error;
  }
  auto ids = chat_template->encode_chat(model_.tokenizer, context);
  if (!ids) {
    if (ids.error().code != ErrorCode::kInvalidArgument) return api_error(ids.error(), 0);
    return invalid_request("messages", "the chat template refuses the request: " + ids.error().message);
  }
  std::vector<TokenId> out = std::move(ids).value();
  if (prompt.continue_final_message) {
    if (auto error = cut_after_last_message(prompt, *chat_template, context, out)) return *error;
  }
  if (out.empty()) return invalid_request("messages", "the messages give an empty prompt");
  truncate_left(out, options);
  return out;
}

// What the template writes after the last message is what it writes after another text in its place: the message's own
// text may stand in there as well. It begins, with most models, with a control token, so that its tokens are the
// prompt's last ones. Where they are not, a cut would have to go through a token.
std::optional<ApiError> PromptText::cut_after_last_message(const ChatPrompt& prompt,
                                                           const text::ChatTemplate& chat_template,
                                                           const std::string& context,
                                                           std::vector<TokenId>& ids) const {
  const auto refused = [](const char* why) { return invalid_request("continue_final_message", why); };
  const JsonValue* content = prompt.messages.back().find("content");
  std::string last = content && content->if_string() ? *content->if_string() : std::string();
  last.erase(0, std::min(last.find_first_not_of(" \t\r\n"), last.size()));
  if (last.empty()) return refused("the last message has no text");
  std::string other = "continued";
  while (context.find(other) != std::string::npos) other += "x";
  auto rendered = chat_template.render(context);
  if (!rendered) return api_error(rendered.error(), 0);
  auto with_other = chat_template.render(template_context(with_last_text(prompt, other), model_));
  const size_t other_begin = with_other ? with_other->rfind(other) : std::string::npos;
  const auto not_shown = refused("the chat template does not show the last message as it is");
  if (other_begin == std::string::npos) return not_shown;
  const std::string after = with_other->substr(other_begin + other.size());
  if (!rendered->ends_with(after)) return not_shown;
  const auto shown = std::string_view(*rendered).substr(0, rendered->size() - after.size());
  if (!shown.ends_with(last)) last.erase(last.find_last_not_of(" \t\r\n") + 1);  // templates may strip it
  if (!shown.ends_with(last)) return not_shown;
  auto rest = model_.tokenizer.encode(after, {false, true});
  if (!rest) return api_error(rest.error(), 0);
  if (rest->size() > ids.size() || !std::equal(rest->rbegin(), rest->rend(), ids.rbegin())) {
    return refused("the chat template ends a message in the middle of a token");
  }
  ids.resize(ids.size() - rest->size());
  return std::nullopt;
}

Parsed<std::vector<TokenId>> PromptText::text_ids(const std::string& text, bool add_special,
                                                  std::optional<bool> parse_special) const {
  auto ids = model_.tokenizer.encode(text, {add_special, parse_special_ && parse_special.value_or(true)});
  if (!ids) return api_error(ids.error(), 0);
  return std::move(ids).value();
}

// vLLM's rule: a word is also banned as the tokens that it has after a space, where these are as many.
Parsed<std::vector<std::vector<TokenId>>> PromptText::bad_word_ids(const std::vector<std::string>& words) const {
  std::vector<std::vector<TokenId>> out;
  for (const std::string& word : words) {
    const std::string bare = word.substr(word.find_first_not_of(' '));
    auto plain = model_.tokenizer.encode(bare);
    if (!plain) return api_error(plain.error(), 0);
    auto spaced = model_.tokenizer.encode(" " + bare);
    if (!spaced) return api_error(spaced.error(), 0);
    const bool has_other = plain->size() == spaced->size() && !spaced->empty() && spaced->front() != plain->front();
    if (!plain->empty()) out.push_back(*plain);
    if (has_other) out.push_back(*spaced);
  }
  return out;
}

std::optional<ApiError> PromptText::encode_suffix(CompletionRequest& request) const {
  if (!request.suffix) return std::nullopt;
  if (!model_.infill) {
    return invalid_request("suffix", "the model has no tokens for it (<|fim_prefix|>, <|fim_suffix|>, <|fim_middle|>)");
  }
  auto error = check_text_size(request.suffix->size());
  if (!error) {
    auto ids = text_ids(*request.suffix, false, request.options.parse_special);
    if (const ApiError* refusal = std::get_if<ApiError>(&ids)) return *refusal;
    request.suffix_ids = std::get<std::vector<TokenId>>(std::move(ids));
    const size_t num_ids = request.suffix_ids.size();
    if (num_ids > max_model_len_) error = too_long(std::to_string(num_ids), max_model_len_);
    if (num_ids * request.prompts.size() > kMaxSuffixIds) {
      error = invalid_request(
          {}, fmt::format("a suffix of {} tokens is too long for {} prompts at once", num_ids, request.prompts.size()));
    }
  }
  if (error) error->param = "suffix";
  return error;
}

// Prefix, suffix, middle: the order that models with such tokens are trained with. has_bos: `prompt` may begin with the
// BOS that the model adds.
std::vector<TokenId> PromptText::infill_ids(const std::vector<TokenId>& suffix, std::vector<TokenId> prompt,
                                            bool has_bos) const {
  const auto bos = model_.tokenizer.bos();
  const auto begin = prompt.begin() + (has_bos && bos && !prompt.empty() && prompt.front() == *bos ? 1 : 0);
  prompt.insert(begin, model_.infill->prefix);
  prompt.push_back(model_.infill->suffix);
  prompt.insert(prompt.end(), suffix.begin(), suffix.end());
  prompt.push_back(model_.infill->middle);
  return prompt;
}

Parsed<ReplyPrompt> PromptText::completion_prompt(const CompletionRequest& request, size_t index,
                                                  const std::string& field) const {
  const TextOrIds& from = request.prompts[index];
  const GenerationOptions& options = request.options;
  ReplyPrompt prompt;
  if (const auto* given = std::get_if<std::vector<TokenId>>(&from)) {
    prompt.ids = *given;
  } else {
    const std::string& text = std::get<std::string>(from);
    const size_t size_bytes = text.size() + (request.suffix ? request.suffix->size() : 0);
    if (auto error = check_text_size(size_bytes); error && !options.truncate_prompt_tokens) {
      error->param = field;
      return *error;
    }
    const bool adds_special = options.add_special_tokens.value_or(true);
    auto ids = text_ids(text, adds_special, options.parse_special);
    if (const ApiError* error = std::get_if<ApiError>(&ids)) return *error;
    prompt.ids = std::get<std::vector<TokenId>>(std::move(ids));
    if (adds_special && adds_end_) prompt.ids.pop_back();
  }
  if (request.suffix) {
    prompt.ids = infill_ids(request.suffix_ids, std::move(prompt.ids), std::holds_alternative<std::string>(from));
  }
  if (prompt.ids.empty()) {
    const std::string which = request.prompts.size() > 1 ? fmt::format("{}[{}]", field, index) : field;
    return invalid_request(field, which + " is empty");
  }
  const size_t num_given = prompt.ids.size();
  truncate_left(prompt.ids, options);
  // Here and not once all are there: of prompts that are too long nothing is kept, and no text is made.
  auto room = room_for(prompt.ids.size(), options);
  if (ApiError* error = std::get_if<ApiError>(&room)) {
    error->param = field;
    return *error;
  }
  if (request.echo) {
    const bool is_cut = prompt.ids.size() < num_given;
    set_echo(is_cut ? TextOrIds(prompt.ids) : from, options.skip_special, options.sampling.num_logprobs >= 0, prompt);
  }
  return prompt;
}

void PromptText::set_echo(const TextOrIds& from, bool skip_special, bool has_offsets, ReplyPrompt& prompt) const {
  const std::string* text = std::get_if<std::string>(&from);
  prompt.echo_text = text ? *text : model_.tokenizer.decode(prompt.ids, skip_special);
  if (!has_offsets) return;
  // A BOS that the tokenizer put in front is no part of the text, while control tokens that the client wrote are.
  const auto bos = model_.tokenizer.bos();
  const bool has_added_bos =
      text && bos && prompt.ids[0] == *bos && !text->starts_with(model_.tokenizer.token_bytes(*bos));
  text::StreamDecoder decoder(model_.tokenizer, text ? false : skip_special);
  size_t offset = 0;
  for (size_t i = 0; i < prompt.ids.size(); ++i) {
    prompt.offsets.push_back(offset);
    if (i > 0 || !has_added_bos) offset += num_code_points(decoder.push(prompt.ids[i]));
  }
}

std::optional<ApiError> PromptText::check_shown_prompts(const std::vector<ReplyPrompt>& prompts, bool echo,
                                                        const GenerationOptions& options) const {
  const int32_t num_echo_scores = echo ? options.sampling.num_logprobs : -1;
  const int32_t num_top = std::max(num_echo_scores, options.prompt_logprobs);
  size_t num_ids = 0, num_bytes = 0;
  for (const ReplyPrompt& prompt : prompts) {
    num_ids += prompt.ids.size();
    num_bytes += prompt.echo_text.size();
  }
  size_t num_scores = num_ids * (num_top >= 0 ? kScoresPerToken + static_cast<size_t>(num_top) : 0);
  if (options.return_token_ids) num_scores += num_ids;
  const std::string param = echo ? "echo" : options.prompt_logprobs >= 0 ? "prompt_logprobs" : "return_token_ids";
  if (num_scores * options.num_choices > kMaxShownScores || num_bytes * options.num_choices > kMaxEchoBytes) {
    return invalid_request(param, fmt::format("{}: {} prompt tokens, shown in each of {} answers with {} logprobs, "
                                              "are too much for one request",
                                              param, num_ids, options.num_choices, std::max(num_top, 0)));
  }
  return std::nullopt;
}

Parsed<uint32_t> PromptText::room_for(size_t num_prompt_tokens, const GenerationOptions& options) const {
  const bool is_scoring = options.max_tokens == 0u;
  if (num_prompt_tokens > max_model_len_ || (num_prompt_tokens == max_model_len_ && !is_scoring)) {
    return too_long(std::to_string(num_prompt_tokens), max_model_len_);
  }
  const auto room = static_cast<uint32_t>(max_model_len_ - num_prompt_tokens);
  return static_cast<uint32_t>(std::min<uint64_t>(options.max_tokens.value_or(room), room));
}

}  // namespace tandem::openai
