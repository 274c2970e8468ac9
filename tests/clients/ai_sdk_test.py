#!/usr/bin/env python3
"""The AI SDK for Node: node/ai_sdk.mjs against a server."""
import harness

if __name__ == "__main__":
    harness.main_of_node("ai_sdk.mjs", "AI SDK", "ai")
