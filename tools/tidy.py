#!/usr/bin/env python3
"""tidy.py [ROOT] : the rules a compiler does not check. Prints one line per fault; exits 1 if any.

Sizes of files and functions are a ratchet: tools/tidy_exceptions lists what was too long when the rule came, and each
number there may only shrink. A line is `PATH WHAT NUMBER`, WHAT being `lines` or a function's name."""
import pathlib, re, sys

MAX_FILE_LINES = {"test": 800, "other": 600}
MAX_FUNCTION_LINES = 70
MAX_COLUMNS = 120
CODE = {".cc", ".h", ".c", ".py", ".sh", ".rs"}
TEXT = CODE | {".md", ".txt", ".cmake", ".json", ".toml", ".yaml", ".yml", ""}
SKIPPED_FOLDERS = {"build", ".git", "fixtures", "fuzz_corpus", "golden", "target", "__pycache__", "node_modules"}
BANNED_WORDS = {"Manager", "Impl", "Helper", "Helpers", "Util", "Utils", "Common", "Wrapper", "Info", "Data", "Misc"}
BANNED_HEADERS = {"regex": "slow to compile and to run", "iostream": "use base/log.h"}
# Joined here so that this file does not contain them: folders of one machine, hosts of package registries.
MACHINE_PATHS = ["/" + name for name in ("work/", "tmp/team", "root/")]
REGISTRY_HOSTS = [".".join(parts) for parts in (
    ("pypi", "org"), ("pythonhosted", "org"), ("npmjs", "org"), ("npmjs", "com"), ("crates", "io"),
    ("deb", "debian", "org"))]
TYPE = re.compile(r"^\s*(?:template\s*<[^{;]*>\s*)?(?:class|struct|union|enum(?:\s+(?:class|struct))?)\s+"
                  r"(?:TANDEM_\w+\([^)]*\)+\s*|\[\[\w+\]\]\s*)?([A-Z]\w*)|^\s*using\s+([A-Z]\w*)\s*=", re.M)
NOT_CODE = re.compile(r'(?<=[0-9a-fA-F])\'(?=[0-9a-fA-F])|//[^\n]*|/\*.*?\*/|R"(\w*)\(.*?\)\1"'
                      r'|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'|^[ \t]*#(?:\\\n|[^\n])*', re.S | re.M)
NOT_A_FUNCTION = re.compile(r"^(?:if|for|while|switch|else|do|catch|try|return|namespace|class|struct|enum|union)\b"
                            r"|=\s*$|\]\s*\(")
FUNCTION_NAME = re.compile(r"([\w:~]+|operator\s*\S+?)\s*\(")
LINK = re.compile(r"(?<!!)\[[^\]\n]*\]\(([^)\s#]+)(?:#[^)\s]*)?\)")


def blank(match):
    return "\n" * match.group(0).count("\n")


def functions(source):
    """(name, number of lines) of each function body in C++ source. Rough: it matches braces, it does not parse."""
    code = NOT_CODE.sub(blank, source)
    found, open_function, depth, line, head = [], None, 0, 1, ""
    for char in code:
        if char == "\n":
            line += 1
            head += " "
        elif char == "{":
            text = head.strip()
            name = FUNCTION_NAME.search(text)
            if open_function is None and name and ")" in text and not NOT_A_FUNCTION.search(text):
                open_function = (name.group(1), line, depth)
            depth, head = depth + 1, ""
        elif char == "}":
            depth, head = depth - 1, ""
            if open_function and open_function[2] == depth:
                found.append((open_function[0], line - open_function[1] + 1))
                open_function = None
        elif char == ";":
            head = ""
        else:
            head += char
    return found


def name_words(name):
    """The words of a PascalCase or snake_case name, each with its first letter large."""
    return {word[:1].upper() + word[1:] for part in name.split("_")
            for word in re.findall(r"[A-Z]?[a-z0-9]+|[A-Z]+(?![a-z])", part)}


def check_sizes(path, text):
    """Yields (what, number, limit) of what is longer than allowed."""
    is_test = pathlib.PurePath(path).stem.endswith("_test")
    limit = MAX_FILE_LINES["test" if is_test else "other"]
    num_lines = text.count("\n")
    if num_lines > limit:
        yield "lines", num_lines, limit
    # doctest's TEST_CASE is a function too, and a table of cases is long without being hard.
    if path.endswith((".cc", ".h", ".c")):
        longest = {}
        for name, length in functions(text):
            if name not in ("TEST_CASE", "SUBCASE", "TEST_CASE_FIXTURE"):
                longest[name] = max(length, longest.get(name, 0))
        for name, length in longest.items():
            if length > MAX_FUNCTION_LINES:
                yield name, length, MAX_FUNCTION_LINES


def check_names(path, text):
    stem = pathlib.PurePath(path).stem
    for word in sorted(name_words(stem) & BANNED_WORDS):
        yield f"{path}: '{word}' in a file's name says nothing; name its job"
    if path.endswith((".cc", ".h")):
        for match in TYPE.finditer(NOT_CODE.sub(blank, text)):
            name = match.group(1) or match.group(2)
            for word in sorted(name_words(name) & BANNED_WORDS):
                yield f"{path}: '{word}' in type {name} says nothing; name its job"


def check_text(path, text):
    if pathlib.PurePath(path).suffix in CODE:
        for number, line in enumerate(text.splitlines(), 1):
            if len(line) > MAX_COLUMNS:
                yield f"{path}:{number}: {len(line)} columns, at most {MAX_COLUMNS}"
    for header in re.findall(r"^\s*#\s*include\s*<(\w+)>", text, re.M) if path.endswith((".cc", ".h")) else ():
        if header in BANNED_HEADERS:
            yield f"{path}: <{header}> is banned: {BANNED_HEADERS[header]}"
    for place in MACHINE_PATHS:
        if re.search(r"(?<![\w.}])" + re.escape(place), text):
            yield f"{path}: contains {place}, a folder of one machine"
    for host in REGISTRY_HOSTS if not path.endswith("Cargo.lock") else ():
        if host in text:
            yield f"{path}: names {host}; clients know their registry"


def check_links(root, path, text):
    for target in LINK.findall(text):
        if "://" not in target and not target.startswith("mailto:"):
            if not (root / pathlib.PurePath(path).parent / target).exists():
                yield f"{path}: dead link {target}"


def check_exceptions(sizes, exceptions):
    """sizes: {(path, what): (number, limit)} of what is too long. exceptions: {(path, what): number}."""
    for key, (number, limit) in sorted(sizes.items()):
        allowed = exceptions.get(key)
        if allowed is None:
            yield f"{key[0]}: {key[1]}: {number} lines, at most {limit}"
        elif number > allowed:
            yield f"{key[0]}: {key[1]}: {number} lines; it was {allowed} and may only shrink"
        elif number < allowed:
            yield f"tools/tidy_exceptions: {key[0]} {key[1]} is {number} now; lower the number"
    for key in sorted(set(exceptions) - set(sizes)):
        yield f"tools/tidy_exceptions: {key[0]} {key[1]} is within the limit now; take the line out"


def read_exceptions(text):
    rows = [line.split("#")[0].split() for line in text.splitlines()]
    return {(row[0], row[1]): int(row[2]) for row in rows if row}


def source_files(root):
    for path in sorted(root.rglob("*")):
        parts = path.relative_to(root).parts
        is_hidden = any(part.startswith(".") and part != ".ci" for part in parts[:-1])
        if not is_hidden and not SKIPPED_FOLDERS & set(parts) and path.suffix in TEXT and path.is_file():
            yield path


def check_tree(root):
    faults, sizes = [], {}
    for file in source_files(root):
        path = file.relative_to(root).as_posix()
        try:
            text = file.read_text()
        except UnicodeDecodeError:
            continue
        if file.suffix in CODE:
            sizes.update({(path, what): (number, limit) for what, number, limit in check_sizes(path, text)})
            faults += check_names(path, text)
        faults += check_text(path, text)
        if file.suffix == ".md":
            faults += check_links(root, path, text)
    listed = root / "tools" / "tidy_exceptions"
    exceptions = read_exceptions(listed.read_text()) if listed.exists() else {}
    return faults + list(check_exceptions(sizes, exceptions))


if __name__ == "__main__":
    tree = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else pathlib.Path(__file__).resolve().parent.parent
    all_faults = check_tree(tree)
    print("\n".join(all_faults) if all_faults else "tidy: no faults")
    sys.exit(bool(all_faults))
