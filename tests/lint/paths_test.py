#!/usr/bin/env python3
"""paths.py finds what documents and comments name and is not there, and nothing else."""

import pathlib
import tempfile
import unittest

import paths


class PathsTest(unittest.TestCase):
    def found(self, **written):
        """The findings, without their last words, in a tree of these files (a__b_c is a/b.c) and a few more."""
        with tempfile.TemporaryDirectory() as folder:
            root = pathlib.Path(folder)
            files = {"server/queue.h": "int a;\n", "docs/tuning.md": "# Lanes, and `more`\n\n## Two\n", ".git/x.h": ""}
            files.update({name.replace("__", "/").replace("_", "."): text for name, text in written.items()})
            for name, text in files.items():
                (root / name).parent.mkdir(parents=True, exist_ok=True)
                (root / name).write_text(text)
            return [line.removesuffix(": not in the tree") for line in paths.findings(root)]

    def test_takes_what_is_there_by_any_end_of_its_path(self):
        text = "`server/queue.h` `queue.h` `./server/queue.h:12` `docs/` [it](docs/tuning.md) [up](#one)\n\n# One\n"
        self.assertEqual(self.found(README_md=text, server__a_cc="// See queue.h, docs/tuning.md.\n"), [])

    def test_finds_links_to_no_file_from_the_documents_folder(self):
        self.assertEqual(self.found(docs__a_md="x\n[1](tuning.md) [2](docs/tuning.md) [3](../server)\n"),
                         ["docs/a.md:2: docs/tuning.md"])

    def test_finds_links_to_no_heading(self):
        text = "[1](docs/tuning.md#lanes-and-more) [2](docs/tuning.md#two) [3](docs/tuning.md#three) [4](#four)\n"
        self.assertEqual(self.found(README_md=text), ["README.md:1: docs/tuning.md#three", "README.md:1: #four"])

    def test_finds_sources_and_folders_in_code_that_are_gone(self):
        self.assertEqual(self.found(README_md="`gone.cc`\n`server/gone` `bin/x` `a/b` gone.h `x --f=y.npy`\n"),
                         ["README.md:1: gone.cc", "README.md:2: server/gone"])

    def test_finds_sources_in_comments_that_are_gone(self):
        self.assertEqual(self.found(server__a_cc='#include "gone.h"\nint a;  // Of server/old.h,\n/* or\nold.cuh. */\n',
                                    deploy__a_py='"""See\nold.py."""\nx = "old.sh"  # old.md\n'),
                         ["deploy/a.py:2: old.py", "deploy/a.py:3: old.md",
                          "server/a.cc:2: server/old.h", "server/a.cc:4: old.cuh"])

    def test_leaves_addresses_patterns_and_suffixes_alone(self):
        self.assertEqual(self.found(README_md="[1](https://x.y/gone.md) `http://x/gone.h` `*_test.cc`\n",
                                    server__a_cc="// https://x.y/gone.cc; .cu and .h files.\n"), [])


if __name__ == "__main__":
    unittest.main()
