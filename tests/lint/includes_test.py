#!/usr/bin/env python3
"""includes.py finds what is planted in a small tree, and nothing where nothing is."""

import pathlib
import tempfile
import unittest

import includes

TABLE = """
| folder | library | may include | what it is |
|---|---|---|---|
| `kernels/` | `norm_spec`, `norm_cpu` | nothing of ours | the kernels |
| `base/` | `normd_base` | – | the base |
| `server/model/` | `normd_model` | base, `norm_spec` | models |
| `server/exec/` | `normd_exec` | model | lanes |
| `server/main.cc` | `normd` | everything | composition |
| `client/` | `normctl` | base; nothing of the server's | the client |
"""
CLEAN = {
    "base/clock.h": [],
    "base/clock.cc": ["base/clock.h"],
    "kernels/norm.h": [],
    "kernels/norm.cc": ["kernels/norm.h", "kernels/check.h"],
    "kernels/check.h": [],
    "server/model/model.h": ["base/clock.h", "kernels/norm.h"],
    "server/exec/device/lane.cc": ["server/model/model.h", "kernels/norm.h"],
    "server/main.cc": ["server/exec/device/lane.cc"],
    "client/client.h": ["base/clock.h"],
    "tests/base/clock_test.cc": ["base/clock.h", "server/model/model.h"],
}


class IncludesTest(unittest.TestCase):
    def findings(self, planted, table=TABLE):
        with tempfile.TemporaryDirectory() as folder:
            root = pathlib.Path(folder)
            (root / "ARCHITECTURE.md").write_text(table)
            for name, names in {**CLEAN, **planted}.items():
                (root / name).parent.mkdir(parents=True, exist_ok=True)
                lines = ["#include <vector>"] + [f'#include "{included}"' for included in names]
                (root / name).write_text("\n".join(lines) + "\n")
            return "\n".join(includes.findings(root))

    def test_finds_nothing_in_a_clean_tree(self):
        self.assertEqual(self.findings({}), "")

    def test_finds_a_circle_of_headers(self):
        found = self.findings({"base/a.h": ["base/b.h"], "base/b.h": ["base/c.h"], "base/c.h": ["base/a.h"]})
        for line in ("base/a.h includes base/b.h", "base/b.h includes base/c.h", "base/c.h includes base/a.h"):
            self.assertIn(line, found)

    def test_finds_a_circle_through_a_source(self):
        found = self.findings({"kernels/check.h": ["kernels/norm.h"]})
        self.assertIn("kernels/norm.cc includes kernels/check.h", found)
        self.assertIn("kernels/check.h includes kernels/norm.h", found)

    def test_finds_a_circle_of_cuda_sources(self):
        found = self.findings(
            {
                "kernels/cuda/rows.cu": ["kernels/cuda/tile.cuh"],
                "kernels/cuda/rows.cuh": [],
                "kernels/cuda/tile.cuh": ["kernels/cuda/rows.cuh"],
            }
        )
        self.assertIn("kernels/cuda/rows.cu includes kernels/cuda/tile.cuh", found)

    def test_finds_a_circle_among_tests(self):
        found = self.findings({"tests/a.h": ["tests/b.h"], "tests/b.h": ["tests/a.h"]})
        self.assertIn("tests/a.h includes tests/b.h", found)

    def test_finds_an_upward_arrow_between_top_folders(self):
        found = self.findings({"base/clock.h": ["kernels/norm.h"]})
        self.assertIn("base/clock.h includes kernels/norm.h", found)

    def test_finds_an_upward_arrow_between_layers_of_the_server(self):
        found = self.findings({"server/model/other.cc": ["server/exec/device/lane.cc"]})
        self.assertIn("server/model is not above server/exec", found)

    def test_finds_an_include_of_the_server_in_the_client(self):
        self.assertIn("client/a.cc includes", self.findings({"client/a.cc": ["server/model/model.h"]}))

    def test_finds_an_include_of_a_test(self):
        self.assertIn("base/a.cc includes", self.findings({"base/a.cc": ["tests/base/clock_test.cc"]}))

    def test_finds_a_folder_that_the_table_lacks(self):
        self.assertIn("server is not above", self.findings({"server/new/a.cc": ["base/clock.h"]}))

    def test_finds_a_circle_in_the_table(self):
        found = self.findings({}, TABLE.replace("| – |", "| model |"))
        self.assertIn("folders that may include each other", found)

    def test_refuses_a_tree_without_a_table(self):
        self.assertIn("not the root", self.findings({}, "no table"))


if __name__ == "__main__":
    unittest.main()
