#pragma once
// A model hub that speaks the Hugging Face API: from "hf:ORG/REPO[/FILE]" to the files that make up a model.
// Source: the hub's public API, GET /api/models/ORG/REPO?blobs=true, and /ORG/REPO/resolve/main/FILE.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace tandem::fetch {

inline constexpr char kDefaultHubEndpoint[] = "https://huggingface.co";

struct HubAccess {
  std::string endpoint = kDefaultHubEndpoint;  // HF_ENDPOINT
  std::string token;                           // HF_TOKEN; empty: none. Sent to the endpoint's host only
};

struct HubSpec {
  std::string repo;  // ORG/REPO
  std::string file;  // empty: choose; may hold folders
};

struct HubFile {
  std::string name;  // within the repository
  std::string url;
  std::string sha256;  // empty when the hub does not give it
};

struct HubModel {
  std::string repo;
  std::vector<HubFile> files;  // in the order of their names
};

// Refuses names that are not of the form, or that could lead out of a folder.
Result<HubSpec> parse_hub_spec(std::string_view text);

// Without a file: the one .gguf (or the one set of split .gguf files) of the repository, else config.json, tokenizer
// files, generation_config.json, chat templates and all safetensors with their index. Several .gguf are an error that
// names them. Asks the hub once, also for its checksums.
Result<HubModel> resolve_hub(const HubSpec& spec, const HubAccess& access);

// The choice alone, from all of a repository's names. Pure.
Result<std::vector<std::string>> choose_model_files(const std::string& repo, std::vector<std::string> names);

}  // namespace tandem::fetch
