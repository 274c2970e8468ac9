#pragma once
// What a message may hold. A decoder refuses more, and names the field; all memory that follows from a message is
// bounded by these and by the size of the frame.

#include <cstddef>
#include <cstdint>

namespace tandem::wire {

constexpr size_t kMaxSessionBytes = 16u << 20;  // a Prefill of four million tokens
constexpr size_t kMaxPeerBodyBytes = 16u << 20;
constexpr uint32_t kMaxPayloadBytes = 64u << 20;  // of one Push or Mirror
constexpr size_t kMaxPartTimes = 32;              // of a Timings
constexpr size_t kMaxNameBytes = 256;             // node ids, parts of a fingerprint, traceparent
constexpr uint32_t kMaxChoices = 128;
constexpr uint32_t kMaxTopLogprobs = 1024;        // of one token
constexpr uint32_t kMaxBlockSize = 1u << 16;  // tokens
constexpr uint32_t kMaxLayerGroups = 1u << 12;
constexpr uint32_t kMaxTokens =
    1u << 24;  // of a prompt, or of one choice: with all choices, 32 bits still count the blocks
constexpr uint32_t kMaxParts = 1u << 24;  // (block, layer group) of one hand-off

}  // namespace tandem::wire
