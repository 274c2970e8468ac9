#!/usr/bin/env python3
"""Tests of the tools that judge the tree: each must find the fault it is for, and pass what is right."""
import pathlib, sys, tempfile, unittest
import xml.etree.ElementTree as xml

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import count_tests, tidy


class Functions(unittest.TestCase):
    def test_counts_lines_of_free_and_member_functions(self):
        source = "namespace a {\nint f(int x) {\n  return x;\n}\nvoid C::g() const {\n\n\n}\n}\n"
        self.assertEqual(tidy.functions(source), [("f", 3), ("C::g", 4)])

    def test_lambdas_and_blocks_belong_to_their_function(self):
        source = "void f() {\n  auto g = [&](int x) {\n    if (x) {\n    }\n  };\n}\n"
        self.assertEqual(tidy.functions(source), [("f", 6)])

    def test_braces_in_strings_comments_and_macros_do_not_count(self):
        source = ('#define X {\\\n {\nvoid f() {\n  g("{", \'{\', R"(}})");  // }\n'
                  "  /* } */ int n = 1'000;\n}\nint h() { return 1; }\n")
        self.assertEqual(tidy.functions(source), [("f", 4), ("h", 1)])

    def test_types_initialisers_and_constructors(self):
        source = "struct S {\n  S(int a) : a_(a) {}\n  int t[2] = {1, 2};\n};\nconst T x = make({\n1});\n"
        self.assertEqual([name for name, _ in tidy.functions(source)][0], "S")
        self.assertNotIn(6, [length for _, length in tidy.functions(source)])


class Names(unittest.TestCase):
    def faults(self, path, text=""):
        return list(tidy.check_names(path, text))

    def test_banned_words_in_files_and_types(self):
        self.assertTrue(self.faults("src/a/string_utils.h"))
        self.assertTrue(self.faults("src/a/a.h", "class BlockManager {\n};\n"))
        self.assertTrue(self.faults("src/a/a.h", "enum class RequestInfo : int {};\n"))
        self.assertTrue(self.faults("src/a/a.h", "using FooImpl = int;\n"))

    def test_words_inside_words_are_fine(self):
        self.assertEqual(self.faults("src/a/database.h", "struct Informed {};\n// class FooManager\n"), [])


class Text(unittest.TestCase):
    def faults(self, path, text):
        return list(tidy.check_text(path, text))

    def test_columns_headers_paths_hosts(self):
        self.assertEqual(len(self.faults("a.cc", "x" * 121 + "\n" + "x" * 120)), 1)
        self.assertTrue(self.faults("a.cc", "#include <regex>\n"))
        self.assertTrue(self.faults("a.md", "see /" + "work/main"))
        self.assertTrue(self.faults("a.sh", "https://pypi" + ".org/simple"))
        self.assertEqual(self.faults("a.cc", '#include <string>\nauto p = "net/' + 'work/x";\n'), [])

    def test_dead_links(self):
        with tempfile.TemporaryDirectory() as folder:
            root = pathlib.Path(folder)
            (root / "there.md").write_text("")
            text = "[a](there.md#part) [b](gone.md) [c](https://example.com/x)"
            self.assertEqual(list(tidy.check_links(root, "README.md", text)), ["README.md: dead link gone.md"])


class Ratchet(unittest.TestCase):
    def faults(self, number, allowed):
        sizes = {("a.cc", "f"): (number, 70)} if number > 70 else {}
        return list(tidy.check_exceptions(sizes, {("a.cc", "f"): allowed} if allowed else {}))

    def test_may_only_shrink(self):
        self.assertEqual(self.faults(90, 90), [])
        self.assertTrue(self.faults(90, None))
        self.assertTrue(self.faults(91, 90))
        self.assertTrue(self.faults(89, 90))
        self.assertTrue(self.faults(60, 90))

    def test_long_files_and_functions_are_found(self):
        long_function = "void f() {\n" + "  g();\n" * 69 + "}\n"
        self.assertEqual(list(tidy.check_sizes("a.cc", long_function)), [("f", 71, 70)])
        self.assertEqual(list(tidy.check_sizes("a.py", "\n" * 601)), [("lines", 601, 600)])
        self.assertEqual(list(tidy.check_sizes("a_test.cc", "\n" * 800)), [])


class Counts(unittest.TestCase):
    def count(self, inner, status="run"):
        return count_tests.count_case(xml.fromstring(f'<testcase name="t" status="{status}">{inner}</testcase>'))

    def test_doctest_cases_and_skip_lines(self):
        output = ("<system-out>SKIP a: no AVX\n[doctest] test cases:  7 |  7 passed | 0 failed | 0 skipped\n"
                  "</system-out>")
        self.assertEqual(self.count(output), (6, 0, [("a", "no AVX")]))
        output = "<system-out>[doctest] test cases:  7 |  5 passed | 2 failed |</system-out>"
        self.assertEqual(self.count(output, "fail"), (5, 2, []))

    def test_plain_programs_crashes_and_skips(self):
        self.assertEqual(self.count(""), (1, 0, []))
        self.assertEqual(self.count("", "fail"), (0, 1, []))
        self.assertEqual(self.count('<skipped message="SKIP_RETURN_CODE=77"/>', "notrun"),
                         (0, 0, [("t", "SKIP_RETURN_CODE=77")]))
        self.assertEqual(self.count('<skipped message="Unable to find executable"/>', "notrun"), (0, 1, []))
        # A crash after all cases were reported is a failure still.
        output = "<system-out>[doctest] test cases: 2 | 2 passed | 0 failed |</system-out>"
        self.assertEqual(self.count(output, "fail"), (2, 1, []))

    def test_expected_skips(self):
        self.assertEqual(count_tests.expected_skips("# why\navx512 no such unit\n\n"), {"avx512"})


if __name__ == "__main__":
    unittest.main()
