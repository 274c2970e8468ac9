#include "api/openai/structured_output.h"

#include <fmt/format.h>

#include <cctype>

namespace tandem::openai {
namespace {

using sched::Grammar;
using sched::GrammarKind;

constexpr std::string_view kAnyObject = R"({"type":"object"})";
constexpr std::string_view kStructuredOutputs = "structured_outputs";
// Members of structured_outputs that change what may come and that we do not do.
constexpr std::string_view kRefused[] = {"structural_tag", "whitespace_pattern"};
constexpr std::string_view kRefusedFlags[] = {"disable_any_whitespace", "disable_additional_properties"};

// What a request asks for, as it is found. The second is one too many.
class Found {
 public:
  Found(FieldReader& fields, GenerationOptions& options) : fields_(fields), options_(options) {}

  // `field` of the request is at fault when something is wrong; `within` names the member.
  void add(std::string_view field, std::string_view within, Grammar grammar) {
    const std::string name(within.empty() ? field : within);
    if (options_.grammar) {
      fields_.fail(field, fmt::format("{} asks for one form of answer and {} for another; give one of them", name,
                                      options_.grammar_param));
    }
    options_.grammar = std::move(grammar);
    options_.grammar_param = name;
  }

 private:
  FieldReader& fields_;
  GenerationOptions& options_;
};

std::string text_of(const JsonValue& value) { return JsonWriter().value(value).take(); }

// GBNF and other dialects of EBNF define with "::=" at the beginning of a line; Lark with ":".
bool is_ebnf(std::string_view grammar) {
  while (!grammar.empty()) {
    const size_t end = std::min(grammar.find('\n'), grammar.size());
    const std::string_view line = grammar.substr(0, end);
    grammar.remove_prefix(std::min(end + 1, grammar.size()));
    const auto is_name = [](char c) { return std::isalnum(static_cast<unsigned char>(c)) || c == '_' || c == '-'; };
    size_t at = line.find_first_not_of(" \t");
    if (at == std::string_view::npos) continue;
    while (at < line.size() && is_name(line[at])) ++at;
    at = std::min(line.find_first_not_of(" \t", at), line.size());
    if (line.substr(at).starts_with("::=")) return true;
  }
  return false;
}

// A schema is an object, or a text that holds one.
std::optional<Grammar> read_schema(FieldReader& fields, std::string_view name, const JsonValue& value) {
  if (value.if_object()) return Grammar{GrammarKind::kJsonSchema, text_of(value)};
  const std::string* text = value.if_string();
  if (!text) {
    fields.fail_kind(name, "a JSON schema", value);
    return std::nullopt;
  }
  const auto parsed = JsonValue::parse(*text);
  if (!parsed) {
    fields.fail(name, "the text is " + parsed.error().message);
  } else if (!parsed.value().if_object()) {
    fields.fail_kind(name, "a JSON schema", parsed.value());
  } else {
    return Grammar{GrammarKind::kJsonSchema, text_of(parsed.value())};
  }
  return std::nullopt;
}

std::optional<Grammar> read_text(FieldReader& fields, std::string_view name, const JsonValue& value, GrammarKind kind) {
  const std::string* text = value.if_string();
  if (!text || text->empty()) {
    fields.fail_kind(name, "a text that is not empty", value);
    return std::nullopt;
  }
  if (kind == GrammarKind::kLark && is_ebnf(*text)) {
    fields.fail(name, "EBNF (GBNF) is not supported: write the grammar in Lark's form, as in start: \"yes\" | \"no\"");
    return std::nullopt;
  }
  return Grammar{kind, *text};
}

std::optional<Grammar> read_choice(FieldReader& fields, std::string_view name, const JsonValue& value) {
  const JsonValue::Array* choices = value.if_array();
  if (!choices || choices->empty()) {
    fields.fail_kind(name, "a list of texts", value);
    return std::nullopt;
  }
  for (const JsonValue& choice : *choices) {
    if (!choice.if_string() || choice.if_string()->empty()) fields.fail_kind(name, "texts that are not empty", choice);
  }
  return Grammar{GrammarKind::kChoice, text_of(value)};
}

void read_response_format(FieldReader& fields, Found& found) {
  constexpr std::string_view kField = "response_format";
  const JsonValue* format = fields.get(kField);
  if (!format) return;
  const JsonValue* type = format->find("type");
  if (!format->if_object() || !type || !type->if_string()) {
    fields.fail_kind(kField, "an object with a string \"type\"", *format);
    return;
  }
  const std::string& kind = *type->if_string();
  FieldReader inner(*format, "response_format.");
  if (kind == "json_object") {
    // Some clients send the schema beside this type; to ignore it would be to promise what does not come.
    const JsonValue* schema = inner.get("schema");
    const auto grammar =
        schema ? read_schema(inner, "schema", *schema) : Grammar{GrammarKind::kJsonSchema, std::string(kAnyObject)};
    if (grammar) found.add(kField, {}, *grammar);
  } else if (kind == "json_schema") {
    const JsonValue* held = inner.get("json_schema");
    if (!held || !held->if_object()) {
      inner.fail_kind("json_schema", "an object with name and schema", held ? *held : JsonValue());
    } else {
      FieldReader members(*held, "response_format.json_schema.");
      if (members.text("name").empty()) members.fail("name", "is missing");
      static_cast<void>(members.optional_flag("strict"));  // enforced either way
      const JsonValue* schema = members.get("schema");
      if (!schema) members.fail("schema", "is missing");
      const auto grammar = schema ? read_schema(members, "schema", *schema) : std::nullopt;
      if (grammar) found.add(kField, "response_format.json_schema.schema", *grammar);
      inner.absorb(members);
    }
  } else if (kind != "text") {
    inner.fail("type", fmt::format("\"{}\" is not supported; \"text\", \"json_object\" and \"json_schema\" are", kind));
  }
  fields.absorb(inner);
}

// The members of structured_outputs, or guided_json and its likes: `prefix` stands before the names.
void read_kinds(FieldReader& fields, std::string_view field, std::string_view prefix, Found& found) {
  const auto add = [&](std::string_view kind, const auto& read) {
    const std::string name = std::string(prefix) + std::string(kind);
    const JsonValue* value = fields.get(name);
    if (!value) return;
    if (const std::optional<Grammar> grammar = read(name, *value)) {
      const std::string path = field.empty() ? name : fmt::format("{}.{}", field, name);
      found.add(field.empty() ? path : name, path, *grammar);
    }
  };
  add("json", [&](const std::string& name, const JsonValue& value) { return read_schema(fields, name, value); });
  add("regex", [&](const std::string& name, const JsonValue& value) {
    return read_text(fields, name, value, GrammarKind::kRegex);
  });
  add("choice", [&](const std::string& name, const JsonValue& value) { return read_choice(fields, name, value); });
  add("grammar", [&](const std::string& name, const JsonValue& value) {
    return read_text(fields, name, value, GrammarKind::kLark);
  });
}

void read_structured_outputs(FieldReader& fields, GenerationOptions& options) {
  const JsonValue* value = fields.get(kStructuredOutputs);
  if (!value) return;
  if (!value->if_object()) {
    fields.fail_kind(kStructuredOutputs, "an object", *value);
    return;
  }
  FieldReader inner(*value, "structured_outputs.");
  Found found(inner, options);
  const bool had_other = options.grammar.has_value();
  for (std::string_view name : kRefused) {
    if (inner.get(name)) inner.fail(name, "is not supported");
  }
  for (std::string_view name : kRefusedFlags) {
    if (inner.flag(name, false)) inner.fail(name, "is not supported");
  }
  read_kinds(inner, kStructuredOutputs, {}, found);
  if (inner.flag("json_object", false)) {
    found.add("json_object", "structured_outputs.json_object", {GrammarKind::kJsonSchema, std::string(kAnyObject)});
  }
  fields.absorb(inner);
  if (!had_other && !options.grammar) {
    fields.fail(kStructuredOutputs, "one of json, regex, choice, grammar and json_object is needed");
  }
}

}  // namespace

void read_structured_output(FieldReader& fields, GenerationOptions& options) {
  Found found(fields, options);
  read_response_format(fields, found);
  read_structured_outputs(fields, options);
  read_kinds(fields, {}, "guided_", found);
  if (fields.get("guided_whitespace_pattern")) fields.fail("guided_whitespace_pattern", "is not supported");
}

}  // namespace tandem::openai
