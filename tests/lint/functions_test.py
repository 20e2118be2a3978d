#!/usr/bin/env python3
"""functions.py counts the lines of functions of every form, and of nothing else."""

import unittest

import functions


def lines(text):
    """Each function's name, which is the text before the parenthesis, and its lines."""
    return [(head.split("(")[0].split()[-1], count) for _, count, head in functions.functions(text)]


class FunctionsTest(unittest.TestCase):
    def test_counts_from_the_first_line_to_the_brace(self):
        self.assertEqual(lines("int F() {\n  return 1;\n}\n\nint G(int a,\n      int b) {\n}\n"), [("F", 3), ("G", 3)])

    def test_counts_a_template_with_its_first_line(self):
        self.assertEqual(lines("template <typename T>\nvoid F(T t) {\n  t();\n}\n"), [("F", 4)])

    def test_counts_comments_and_empty_lines(self):
        self.assertEqual(lines("void F() {\n  // {{\n\n  /* {\n  */\n}\n"), [("F", 6)])

    def test_counts_lambdas_loops_and_local_classes_as_lines_of_their_function(self):
        body = "  const auto g = [&](int i) {\n    return i;\n  };\n  for (;;) {\n  }\n  struct A {\n    int b() { return 1; }\n  };\n"
        self.assertEqual(lines("void F() {\n" + body + "}\n"), [("F", 10)])

    def test_counts_the_functions_of_classes_in_namespaces(self):
        text = "namespace a {\nclass B : public C {\n public:\n  B() : x_(1), y_{2} {\n  }\n  int z() const override {\n    return 1;\n  }\n private:\n  int x_{1};\n};\n}  // namespace a\n"
        self.assertEqual(lines(text), [("B", 2), ("z", 3)])

    def test_counts_tests_and_kernels(self):
        text = "TEST(A, B) {\n  C();\n}\n__global__ void __launch_bounds__(256, 2)\n    Kernel(int a) {\n}\n"
        self.assertEqual([count for _, count in lines(text)], [3, 3])

    def test_counts_no_initialisers(self):
        text = "constexpr int kA[] = {\n  1,\n};\nstd::map<int, int> b{\n  {1, 2},\n};\nenum class C : int {\n  kD,\n};\n"
        self.assertEqual(lines(text), [])

    def test_reads_no_braces_in_text(self):
        text = "const char* F() {\n  Use('{', \"{\\\"{\");\n  return R\"(\n{{\n)\";\n}\nvoid G() {\n}\n"
        self.assertEqual(lines(text), [("F", 6), ("G", 2)])

    def test_reads_no_braces_of_directives(self):
        self.assertEqual(lines("#define A(b) \\\n  if (b) {\nvoid F() {\n}\n"), [("F", 2)])

    def test_goes_on_behind_a_separator_of_digits(self):
        self.assertEqual(lines("constexpr int kA = 1'000'000;\nvoid F() {\n}\n"), [("F", 2)])


if __name__ == "__main__":
    unittest.main()
