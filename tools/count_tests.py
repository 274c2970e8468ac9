#!/usr/bin/env python3
"""count_tests.py RESULTS... : adds up ctest's JUnit files (RESULTS.xml) and prints the counts on the last line.

A doctest program counts as its cases, any other test as one. A test skips by exit code 77 or by a line
"SKIP name: reason". Exits 1 when a test failed, a results file is missing, or a skip is not in tests/expected_skips."""
import pathlib, re, sys
import xml.etree.ElementTree as xml

EXPECTED = pathlib.Path(__file__).resolve().parent.parent / "tests" / "expected_skips"
SKIP_LINE = re.compile(r"^SKIP ([^\s:]+): *(.*)$", re.M)
DOCTEST = re.compile(r"\[doctest\] test cases: *(\d+) *\| *(\d+) passed *\| *(\d+) failed")


def count_case(case):
    """(passed, failed, [(name, reason)]) of one ctest entry."""
    output = case.findtext("system-out") or ""
    name, status = case.get("name"), case.get("status")
    if status in ("notrun", "disabled"):
        reason = case.find("skipped")
        message = (reason.get("message") if reason is not None else None) or "not run"
        # ctest says "SKIP_RETURN_CODE=77" for a skip the test asked for; anything else means that it could not start.
        if "SKIP" not in message:
            return 0, 1, []
        line = SKIP_LINE.search(output)
        return 0, 0, [(line.group(1), line.group(2)) if line else (name, message)]
    skips = sorted(set(SKIP_LINE.findall(output)))
    passed, failed = (1, 0) if status == "run" else (0, 1)
    summary = DOCTEST.search(output)
    if summary:
        passed, failed = int(summary.group(2)), max(int(summary.group(3)), failed)
    return max(passed - len(skips), 0), failed, skips


def count_file(path):
    totals, skips = [0, 0], []
    try:
        cases = xml.parse(path).getroot().iter("testcase")
    except (OSError, xml.ParseError) as error:
        print(f"{path}: {error}")
        return [0, 1], []
    for case in cases:
        passed, failed, skipped = count_case(case)
        totals[0] += passed
        totals[1] += failed
        skips += skipped
        if failed:
            print(f"FAILED {path.stem}: {case.get('name')}")
    return totals, skips


def expected_skips(text):
    """The first word of each line; the rest says why."""
    return {line.split()[0] for line in text.splitlines() if line.split("#")[0].strip()}


def main(arguments):
    passed = failed = 0
    skips = []
    for stem in arguments:
        totals, skipped = count_file(pathlib.Path(stem + ".xml"))
        passed, failed, skips = passed + totals[0], failed + totals[1], skips + skipped
    known = expected_skips(EXPECTED.read_text())
    for name, reason in skips:
        print(f"skipped {name}: {reason}" + ("" if name in known else "  (NOT in tests/expected_skips)"))
    unexpected = [name for name, _ in skips if name not in known]
    print(f"{passed} passed, {failed} failed, {len(skips)} skipped")
    return 1 if failed or unexpected else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
