#!/usr/bin/env python3
"""commands.py finds flags, targets, presets, tests and labels that are gone, and nothing else."""

import json
import pathlib
import tempfile
import unittest

import commands

TREE = {
    "CMakePresets.json": json.dumps({
        "configurePresets": [{"name": "base", "hidden": True}, {"name": "dev"}, {"name": "asan"}],
        "buildPresets": [{"name": "dev"}],
        "testPresets": [{"name": "dev"}],
        "workflowPresets": [{"name": "dev"}],
    }),
    "CMakeLists.txt": "normd_binary(normd SOURCES main.cc)\nnormd_binary(load_bench SOURCES a.cc)\n"
                      "normd_test(queue_test SOURCES queue_test.cc LABELS threads)\n"
                      "foreach(one npy http)\n  normd_fuzzer(${one}_fuzzer SOURCES a.cc)\nendforeach()\n"
                      "add_test(NAME lint_all COMMAND lint.py)\nset_tests_properties(lint_all PROPERTIES LABELS \"lint;slow\")\n",
    "server/config/flags.cc": 'flags.Add("listen", &c.listen, "a", "B", "C.");\n'
                              'flags.AddBytes(\n  "max_bytes", &c.bytes, 1, "C.");\nflags.Add("quiet", &c.quiet, "", "D");\n',
    "client/normctl/admin.cc": 'flags.Add("watch", &watch_, "", "Prints.");\n',
    "tests/bench/load_bench.cc": 'ABSL_FLAG(int, rounds, 3, "rounds");\n',
    "tests/run.py": 'import harness\nparser.add_argument("--bin")\n',
    "tests/harness.py": 'parser.add_argument("--only")\n',
    "deploy/test.sh": "case $1 in\n  -h | --help) ;;\n  --all) ;;\n  --port=*) ;;\nesac\n",
}


class CommandsTest(unittest.TestCase):
    def found(self, text, path="README.md"):
        with tempfile.TemporaryDirectory() as folder:
            for name, content in {**TREE, path: text}.items():
                (pathlib.Path(folder) / name).parent.mkdir(parents=True, exist_ok=True)
                (pathlib.Path(folder) / name).write_text(content)
            return [line.removeprefix(f"{path}:") for line in commands.findings(folder)]

    def test_takes_what_there_is(self):
        self.assertEqual(self.found(
            "`--listen`, `--max_*`, `--noquiet` and `normctl --watch`.\n\n"
            "    cmake --workflow --preset dev && build/dev/bin/normd --listen=a --max-bytes=1 \\\n      --quiet\n"
            "    cmake --preset asan && cmake --build --preset dev --target normd queue_test -- -j1\n"
            "    ctest --preset dev -R queue -L lint && ctest -L slow -R http_fuzzer_replay\n"
            "    sudo tests/run.py --bin=x --only=y | ./deploy/test.sh --all --port=1\n"
            "    build/dev/bin/load_bench --rounds=2   # --gone\n"
            "    build/asan/bin/npy_fuzzer_replay x; docker run --rm -p 1:1 normd --listen=a\n"), [])

    def test_finds_flags_that_the_program_lacks(self):
        self.assertEqual(self.found("`normd --watch`\n\n    normctl x --watch --listen=a\n    docker run normd --watch\n"),
                         ["1: --watch: no flag of normd", "3: --listen: no flag of normctl", "4: --watch: no flag of normd"])

    def test_finds_flags_of_a_command_of_several_lines_and_of_each_command_of_a_line(self):
        self.assertEqual(self.found("    normd --listen=a \\\n      --gone\n    normd --quiet | normctl --quiet\n"),
                         ["1: --gone: no flag of normd", "3: --quiet: no flag of normctl"])

    def test_finds_flags_that_no_program_has(self):
        self.assertEqual(self.found("`--gone`, `--gone_*`\nand `--watch`\n\n```yaml\nx: 1\n[\"--gone\"]\n```\n"),
                         ["1: --gone: no program has this flag", "1: --gone_: no program has this flag",
                          "6: --gone: no program has this flag"])

    def test_finds_flags_that_a_script_lacks_from_the_pages_folder_too(self):
        self.assertEqual(self.found("`run.py --only=x --rounds` `tests/run.py --all`\n", "tests/README.md"),
                         ["1: --rounds: no flag of tests/run.py", "1: --all: no flag of tests/run.py"])
        self.assertEqual(self.found("    ./deploy/test.sh --bin\n    build/dev/bin/load_bench --seed=1\n"),
                         ["1: --bin: no flag of deploy/test.sh", "2: --seed: no flag of load_bench"])

    def test_finds_scripts_that_are_gone(self):
        self.assertEqual(self.found("    python3 tests/gone.py --x\n    ./deploy/test.sh && other/gone.sh\n"),
                         ["1: tests/gone.py: not in the tree"])

    def test_finds_targets_that_no_build_has(self):
        self.assertEqual(self.found("`cmake --build --preset dev --target normd gone`\n\n    build/dev/bin/gone --x\n"),
                         ["1: --target gone: no such target", "3: build/dev/bin/gone: no target 'gone'"])

    def test_finds_presets_that_are_none_of_their_kind(self):
        self.assertEqual(self.found("    cmake --preset gone\n    ctest --preset asan\n    cmake --build --preset asan\n"
                                    "    cmake --workflow --preset asan\n    build/base/bin/normd\n"),
                         ["1: --preset gone: not among configurePresets", "2: --preset asan: not among testPresets",
                          "3: --preset asan: not among buildPresets", "4: --preset asan: not among workflowPresets",
                          "5: build/base/bin/normd: no preset 'base'"])

    def test_finds_tests_and_labels_that_there_are_none_of(self):
        self.assertEqual(self.found("`ctest -R Queue`\n`ctest -L gone`\n"),
                         ["1: -R Queue: no such test", "2: -L gone: no such label"])


if __name__ == "__main__":
    unittest.main()
