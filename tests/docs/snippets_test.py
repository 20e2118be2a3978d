#!/usr/bin/env python3
"""snippets.py finds the shell and the Python of a page, and nothing else."""

import unittest

import snippets


def found(text):
    """(kind, line, text) of each piece that runs, or (reason, line) of what does not."""
    return [(each.not_run, each.line) if each.not_run else (each.kind, each.line, "\n".join(each.rows))
            for each in snippets.snippets(text)]


def indented(text):
    return "    " + text.replace("\n", "\n    ") + "\n"


class SnippetsTest(unittest.TestCase):
    def test_finds_shell_and_python_by_what_they_say(self):
        self.assertEqual(found("Text:\n\n    normctl models --json\n\nMore:\n\n    import normd\n\nEnd.\n"),
                         [("shell", 3, "normctl models --json"), ("python", 7, "import normd")])
        for line in ("curl -s http://x | head", "cp -r 7 models/7", "build/dev/bin/normd --x", "./deploy/demo.sh --keep",
                     "for i in 1 2; do true; done", "tls=--x", "# First:\nnormd", "normload --find_max", "docker build ."):
            self.assertEqual([kind for kind, *_ in found(indented(line))], ["shell"], line)
        for line in ("x = 1", "client.call(x)", "with a as b:\n    pass", "a.b, c", "from x import y",
                     "normd.Client(x)"):
            self.assertEqual([kind for kind, *_ in found(indented(line))], ["python"], line)

    def test_leaves_other_languages_alone(self):
        for line in ("y = x · weight", "models/NAME/1/params.safetensors     version 1", "canary { version: 6 }",
                     "auto fleet = FleetClient::Create(options);", "input       x [*, 4096]", "#include <x>\n\nint a;",
                     "spec:\n  rules: [{ x: 1 }]"):
            self.assertEqual(found(indented(line)), [], line)
        self.assertEqual(found("```yaml\nx: 1\n```\n\nnormd runs.\n"), [])

    def test_takes_the_language_that_a_fence_names(self):
        self.assertEqual(found("```python\ny\n```\n```sh\nmystery\n```\n"),
                         [("python", 2, "y"), ("shell", 5, "mystery")])

    def test_parts_a_block_where_its_language_changes(self):
        text = indented("a/config.textproto    x\n\nnormd &\n\nnormctl models\n\n# Python\nimport x\n\nx.y\n\nimport z")
        self.assertEqual(found(text), [("shell", 3, "normd &\n\nnormctl models"),
                                       ("python", 7, "# Python\nimport x\n\nx.y"), ("python", 12, "import z")])

    def test_keeps_here_documents_and_continuations_whole(self):
        text = "    cat >x <<'END'\n    import a\n\n    b\n    END\n    normd \\\n        --x\n"
        self.assertEqual(found(text), [("shell", 1, "cat >x <<'END'\nimport a\n\nb\nEND\nnormd \\\n    --x")])
        rows = found(text)[0][2].split("\n")
        self.assertEqual([at for at, _ in snippets.commands(rows)], [0, 5])

    def test_finds_what_is_typed_and_what_it_prints(self):
        self.assertEqual(found("    >>> 1 + 1\n    2\n\n    $ ls\n    x\n"),
                         [("doctest", 1, ">>> 1 + 1\n2"), ("console", 4, "$ ls\nx")])

    def test_leaves_out_what_a_comment_leaves_out_and_nothing_behind_it(self):
        text = "<!-- not run: needs\na fleet -->\n\n    normd\n\nText.\n\n    normd\n\n<!-- A comment. -->\n    normd\n"
        self.assertEqual(found(text), [("needs a fleet", 4), ("shell", 8, "normd"), ("shell", 11, "normd")])

    def test_says_why_a_piece_runs_on_no_other_machine(self):
        self.assertEqual(found('    x = y.to("cuda:0")\n\n    import z  # With cuda: later.\n'),
                         [("needs a GPU", 1), ("python", 3, "import z  # With cuda: later.")])
        self.assertTrue(snippets.elsewhere("normload --server=10.0.0.1:8001", snippets.COMMANDS))
        self.assertFalse(snippets.elsewhere("normload --server=127.0.0.1:8001  # docker", snippets.COMMANDS))


if __name__ == "__main__":
    unittest.main()
