#!/usr/bin/env python3
"""list_crates.py [--check] : writes docs/third-party-crates.md, the crates of text/Cargo.lock with their licences, from
`cargo metadata`. With --check it only compares, from what a build has fetched, and exits 1 when they differ."""
import json, os, pathlib, re, subprocess, sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
OUTPUT = ROOT / "docs" / "third-party-crates.md"
CARGO = os.environ.get("CARGO", "cargo")


def linked_packages(options):
    """What the library links: normal dependencies on this platform, without build scripts and test tools."""
    manifest = str(ROOT / "text" / "Cargo.toml")
    command = [CARGO, "metadata", "--format-version", "1", "--locked", "--manifest-path", manifest,
               "--filter-platform", "x86_64-unknown-linux-gnu", *options]
    metadata = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    packages = {package["id"]: package for package in metadata["packages"]}
    nodes = {node["id"]: node for node in metadata["resolve"]["nodes"]}
    root = metadata["resolve"]["root"]
    seen, todo = set(), [root]
    while todo:
        for dependency in nodes[todo.pop()]["deps"]:
            if dependency["pkg"] not in seen and any(kind["kind"] is None for kind in dependency["dep_kinds"]):
                seen.add(dependency["pkg"])
                todo.append(dependency["pkg"])
    return sorted((packages[package] for package in seen), key=lambda p: (p["name"], p["version"]))


def as_table(packages):
    lines = ["# Rust crates in the text library", "",
             "Linked into `tandem` by [text/](../text/Cargo.toml). Made by `tools/list_crates.py`; do not edit.", "",
             "| crate | version | licence |", "|---|---|---|"]
    for package in packages:
        licence = package["license"] or "see " + str(package["license_file"])
        lines.append(f"| {package['name']} | {package['version']} | {re.sub(r' */ *| +OR +', ' OR ', licence)} |")
    return "\n".join(lines) + "\n"


def main(arguments):
    is_check = arguments == ["--check"]
    text = as_table(linked_packages(["--offline"] if is_check else []))
    if is_check:
        if not OUTPUT.exists() or OUTPUT.read_text() != text:
            print(f"{OUTPUT.relative_to(ROOT)} is not up to date: run tools/list_crates.py")
            return 1
        return 0
    OUTPUT.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
