#!/usr/bin/env python3
"""prose.py finds long lines, long sentences and "Of" at a beginning, and nothing else."""

import pathlib
import tempfile
import unittest

import prose

LONG = " ".join(["word"] * 25)  # 124 columns.


class ProseTest(unittest.TestCase):
    def found(self, name, text):
        """(line, the first words of what was found) in a tree of this file."""
        with tempfile.TemporaryDirectory() as folder:
            (pathlib.Path(folder) / name).write_text(text)
            found = [line.split(":", 2)[1:] for line in prose.findings(pathlib.Path(folder))]
            return [(int(line), " ".join(what.split()[:4])) for line, what in found]

    def test_finds_long_lines_of_paragraphs_items_and_headings(self):
        self.assertEqual(self.found("a.md", f"One.\n{LONG}\n\n- {LONG}\n\n## {LONG}\n"),
                         [(2, "124 columns of prose,"), (4, "126 columns of prose,"), (6, "127 columns of prose,")])

    def test_leaves_long_tables_code_comments_and_targets_alone(self):
        fence = f"```\n{LONG}\n```\n"
        text = f"| {LONG} |\n|---|\n\n    {LONG}\n\n- An item.\n\n      {LONG}\n\n{fence}\n<!-- {LONG} -->\n[x](docs/{'x' * 120}.md)\n"
        self.assertEqual(self.found("a.md", text), [])

    def test_finds_sentences_of_more_than_40_words_where_they_begin(self):
        words = "word word word word\n" * 10
        self.assertEqual(self.found("a.md", f"One. Two\n{words}three.\n"), [(1, "a sentence of 42")])
        self.assertEqual(self.found("a.md", f"One.\n\n- {words}three.\n"), [(3, "a sentence of 41")])
        self.assertEqual(self.found("a.md", f"One.\n{words.strip()}.\nTwo.\n"), [])

    def test_counts_code_as_a_word_and_ends_sentences_behind_stars(self):
        self.assertEqual(self.found("a.md", "`a b c d`\n" * 40 + "**End.** " + "word\n" * 30), [(1, "a sentence of 41")])
        self.assertEqual(self.found("a.md", "- **Bold**: " + "word\n" * 30 + "end (e.g. this).\n" + "word\n" * 40), [])

    def test_finds_sentences_that_begin_with_of(self):
        self.assertEqual(self.found("a.md", "One, of two. Of two\none.\n\n- Of it.\n\nTwo:\n\n    Of code.\n"),
                         [(1, "a sentence begins with"), (4, "a sentence begins with")])

    def test_finds_code_that_a_list_makes_prose(self):
        self.assertEqual(self.found("a.md", "- An item.\n\n    code\n"), [(3, "four spaces behind an")])
        self.assertEqual(self.found("a.md", "- An item:\n\n      code\n\nText.\n\n    code\n"), [])

    def test_finds_comments_that_begin_with_of(self):
        text = "// Of a file.\nint a;  // Of it.\n  /* Of\n */\n// One:\n// Of two lines.\n//\n// Of a third.\nint b;  // b.\n// Of c.\n"
        for name in ("a.cc", "a.cu", "a.proto"):
            self.assertEqual([line for line, _ in self.found(name, text)], [1, 2, 3, 8, 10], name)
        self.assertEqual(self.found("a.cc", "// Offers; of\nint of;  // One of them,\n         // Of which.\n"), [])

    def test_finds_comments_of_python_that_begin_with_of(self):
        text = '"""Of a module."""\n# Of it.\na = 1  # Of a.\n# One\n# Of two.\n'
        self.assertEqual([line for line, _ in self.found("a.py", text)], [1, 2, 3])


if __name__ == "__main__":
    unittest.main()
