#!/usr/bin/env python3
"""The official openai client for Node: node/openai.mjs against a server."""
import harness

if __name__ == "__main__":
    harness.main_of_node("openai.mjs", "openai (Node)", "openai")
