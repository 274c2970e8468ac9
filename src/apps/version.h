#pragma once
// What this program is, and the versions of what it says to others.

#include <string>

namespace tandem::apps {

// Of the messages between nodes (hand-off, control). Nodes of unequal versions do not talk to each other.
inline constexpr int kProtocolVersion = 1;

std::string program_version();  // "0.1.0"

// The lines of --version: semver, commit, ABI, protocol and the layout of packed weights.
std::string version_text();

}  // namespace tandem::apps
