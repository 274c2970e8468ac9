#include "net/fetch/hub.h"

#include <algorithm>
#include <map>
#include <utility>

#include "base/json.h"
#include "net/fetch/download.h"

namespace tandem::fetch {
namespace {

constexpr size_t kMaxListingBytes = 16 << 20;
constexpr size_t kMaxNamesInError = 20;

bool is_name_char(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' || c == '_' || c == '.';
}

bool is_name(std::string_view text) {
  return !text.empty() && text != "." && text != ".." && std::all_of(text.begin(), text.end(), is_name_char);
}

// File names may hold more than repository names do, but must stay inside their folder.
bool is_file_name(std::string_view text) {
  while (true) {
    const size_t slash = text.find('/');
    const std::string_view part = text.substr(0, slash);
    if (part.empty() || part == "." || part == "..") return false;
    for (const char c : part) {
      if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f || c == '\\') return false;
    }
    if (slash == std::string_view::npos) return true;
    text.remove_prefix(slash + 1);
  }
}

std::string percent_encoded(std::string_view path) {
  std::string text;
  for (const char c : path) {
    if (is_name_char(c) || c == '/' || c == '~') {
      text += c;
      continue;
    }
    const auto byte = static_cast<unsigned char>(c);
    text += '%';
    text += "0123456789ABCDEF"[byte >> 4];
    text += "0123456789ABCDEF"[byte & 15];
  }
  return text;
}

// "model-00001-of-00003.gguf" -> "model-of-00003": the set a split file belongs to; its own name when not split.
std::string split_set(const std::string& name) {
  const size_t of = name.rfind("-of-");
  if (of == std::string::npos || of < 6 || name[of - 6] != '-') return name;
  if (!std::all_of(name.begin() + static_cast<long>(of) - 5, name.begin() + static_cast<long>(of),
                   [](char c) { return c >= '0' && c <= '9'; }))
    return name;
  return name.substr(0, of - 6) + name.substr(of);
}

bool is_directory_part(const std::string& name) {
  if (name.find('/') != std::string::npos) return false;
  return name == "config.json" || name == "generation_config.json" || name == "special_tokens_map.json" ||
         name == "chat_template.jinja" || name == "chat_template.json" || name == "tokenizer.model" ||
         (name.starts_with("tokenizer") && name.ends_with(".json")) || name.ends_with(".safetensors") ||
         name.ends_with(".safetensors.index.json");
}

Result<std::map<std::string, std::string>> read_listing(const std::string& repo, const std::string& text) {
  Result<JsonValue> parsed = JsonValue::parse(text);
  if (!parsed) return std::move(parsed).error().during("listing of " + repo);
  const JsonValue* siblings = parsed->find("siblings");
  const JsonValue::Array* list = siblings != nullptr ? siblings->if_array() : nullptr;
  if (list == nullptr) return Error{ErrorCode::kCorrupt, "listing of " + repo + ": no list of files in it"};
  std::map<std::string, std::string> sha256_of_name;
  for (const JsonValue& entry : *list) {
    const JsonValue* field = entry.find("rfilename");
    const std::string* name = field != nullptr ? field->if_string() : nullptr;
    if (name == nullptr || !is_file_name(*name)) continue;
    const JsonValue* lfs = entry.find("lfs");
    const JsonValue* sha256 = lfs != nullptr ? lfs->find("sha256") : nullptr;
    const std::string* digits = sha256 != nullptr ? sha256->if_string() : nullptr;
    sha256_of_name[*name] = digits != nullptr && digits->size() == 64 ? *digits : "";
  }
  return sha256_of_name;
}

}  // namespace

Result<HubSpec> parse_hub_spec(std::string_view text) {
  const auto malformed = [&] {
    return Error{ErrorCode::kInvalidArgument,
                 "'" + std::string(text) + "' is not of the form hf:ORG/REPO or hf:ORG/REPO/FILE"};
  };
  std::string_view rest = text;
  if (rest.starts_with("hf:")) rest.remove_prefix(3);
  const size_t first = rest.find('/');
  if (first == std::string_view::npos) return malformed();
  const size_t second = rest.find('/', first + 1);
  const std::string_view org = rest.substr(0, first);
  const std::string_view name = rest.substr(first + 1, second == std::string_view::npos ? second : second - first - 1);
  if (!is_name(org) || !is_name(name)) return malformed();
  HubSpec spec{std::string(org) + "/" + std::string(name), ""};
  if (second != std::string_view::npos) {
    spec.file = rest.substr(second + 1);
    if (!is_file_name(spec.file)) return malformed();
  }
  return spec;
}

Result<std::vector<std::string>> choose_model_files(const std::string& repo, std::vector<std::string> names) {
  std::sort(names.begin(), names.end());
  std::map<std::string, std::vector<std::string>> sets;
  std::vector<std::string> directory;
  for (const std::string& name : names) {
    if (name.ends_with(".gguf")) sets[split_set(name)].push_back(name);
    if (is_directory_part(name)) directory.push_back(name);
  }
  if (sets.size() == 1) return sets.begin()->second;
  const auto has = [&](const auto& is_wanted) { return std::any_of(directory.begin(), directory.end(), is_wanted); };
  const bool has_weights = has([](const std::string& name) { return name.ends_with(".safetensors"); });
  if (sets.empty() && has_weights && has([](const std::string& name) { return name == "config.json"; }))
    return directory;
  if (sets.empty())
    return Error{ErrorCode::kNotFound, repo + " has neither a .gguf file nor config.json with .safetensors files"};
  std::string choices;
  size_t num_named = 0;
  for (const auto& [set, files] : sets) {
    if (++num_named > kMaxNamesInError) break;
    choices += "\n  hf:" + repo + "/" + files.front();
  }
  return Error{ErrorCode::kInvalidArgument,
               repo + " has " + std::to_string(sets.size()) + " .gguf models; name one:" + choices};
}

Result<HubModel> resolve_hub(const HubSpec& spec, const HubAccess& access) {
  std::string endpoint = access.endpoint.empty() ? kDefaultHubEndpoint : access.endpoint;
  while (endpoint.ends_with('/')) endpoint.pop_back();
  Result<std::string> text =
      fetch_text(endpoint + "/api/models/" + spec.repo + "?blobs=true", access.token, kMaxListingBytes);
  if (!text) return std::move(text).error().during("list the files of " + spec.repo);
  TRY_ASSIGN(const auto listing, read_listing(spec.repo, *text));
  std::vector<std::string> names;
  for (const auto& [name, sha256] : listing) names.push_back(name);
  if (spec.file.empty()) {
    TRY_ASSIGN(names, choose_model_files(spec.repo, names));
  } else {
    // One part of a split model stands for all of them.
    std::erase_if(names, [&](const std::string& name) { return split_set(name) != split_set(spec.file); });
    if (names.empty()) return Error{ErrorCode::kNotFound, spec.repo + " has no file " + spec.file};
  }
  HubModel model{spec.repo, {}};
  for (const std::string& name : names) {
    model.files.push_back(
        {name, endpoint + "/" + spec.repo + "/resolve/main/" + percent_encoded(name), listing.at(name)});
  }
  return model;
}

}  // namespace tandem::fetch
