#!/usr/bin/env python3
"""Searches pages for commands that would fail: flags that no program has, targets, presets, tests and labels that no
build has, and scripts that are not in the tree.

In documents (*.md), in `code` and in blocks of code: a flag behind a program of this tree has to be one of that
program's, a flag that stands alone one of any. Names are taken from the sources: flags from where they are declared,
the others from CMakePresets.json and the files of CMake. Programs of others are not looked at.

    tests/lint/commands.py [ROOT]

Prints each finding and exits with 1 if there is any.
"""

import functools
import json
import pathlib
import re

import pages

# It names flags of earlier versions.
LEFT_OUT = {"CHANGELOG.md"}
PROGRAMS = {
    "normd": ["server/config/*.cc"],
    "normctl": ["client/normctl/*.cc", "client/connection_flags.cc"],
    "normload": ["client/normload/*.cc", "client/connection_flags.cc"],
    "norm_bench": ["kernels/bench/options.cc"],
}
# Flags of other programs that pages name by themselves, and whose they are.
OTHERS = {
    "perf_analyzer": "concurrency-range request-rate-range request-distribution request-intervals binary-search "
    "latency-threshold stability-percentage input-data shared-memory",
    "ghz": "load-schedule",
    "docker": "memory read-only cap-drop security-opt pids-limit user time entrypoint build-arg target gpus profile "
    "ulimit health-cmd",
    "nvcc": "use_fast_math",
    "compute-sanitizer": "num-cuda-barriers",
    "KServe": "grpc-port",
}

CODE = re.compile(r"`([^`]+)`")
FLAG = re.compile(r"(?<![\w-])--([a-z][\w-]*)(\*?)")
# How sources declare theirs: FlagSet, absl, the tables of norm_bench, prefixes that a loop looks for.
DECLARED = {
    ".cc": re.compile(r'\bAdd(?:Bytes|Parsed)?\(\s*"(\w+)"|ABSL_FLAG\([^,]+,\s*(\w+)|\{"(\w+)", "[^"]*"\}|Prefix\(\S+ "--(\w+)='),
    ".py": re.compile(r'"--([\w-]+)"'),
    ".sh": re.compile(r"--([\w-]+)(?=(?:=[^\s)]*)?(?: \||\)))"),
}
ABSL = {"help", "helpfull", "flagfile", "version"}
BUILT = re.compile(r"(?:\./)?build/(\w+)/(?:bin|tests)/(\w+)$")
SCRIPT = re.compile(r"(?:\./)?((?:[\w.-]+/)*[\w.-]+\.(?:py|sh))$")
ENDS = re.compile(r"\|\|?|&&?|;|\$\(|\)(?=\s|$)")


class Tree:
    def __init__(self, root):
        self.root = pathlib.Path(root)
        self.presets = json.loads((self.root / "CMakePresets.json").read_text())
        files = [path for path in self.root.rglob("*") if path.name == "CMakeLists.txt" or path.suffix == ".cmake"]
        made = [path for path in files if pages.MADE.isdisjoint(path.relative_to(self.root).parts)]
        self.targets, self.tests, self.labels = set(), set(), set()
        for text in (path.read_text() for path in made):
            for kind, name in re.findall(r"^\s*(add_\w+|normd_\w+)\(\s*(?:NAME\s+)?([\w${}]+)", text, re.MULTILINE):
                names = self.expanded(name, text)
                if kind == "normd_fuzzer":
                    names |= {f"{each}_replay" for each in names}
                if kind in ("add_test", "normd_test", "normd_fuzzer"):
                    self.tests |= names
                self.targets |= names - (self.tests if kind == "add_test" else set())
            for labels in re.findall(r'LABELS\s+"?([a-z;]+)', text):
                self.labels |= set(labels.split(";"))

    @staticmethod
    def expanded(name, text):
        """A name with the values that a loop of the file gives its variable."""
        if not (variable := re.search(r"\$\{(\w+)\}", name)):
            return {name}
        loops = re.findall(rf"foreach\({variable[1]} ([\w ]+)\)", text)
        return {name.replace(variable[0], value) for loop in loops for value in loop.split()}

    def preset_names(self, kind):
        return {preset["name"] for preset in self.presets[kind] if not preset.get("hidden")}

    @functools.lru_cache
    def declared(self, path):
        file = self.root / path
        found = DECLARED[file.suffix].findall(file.read_text())
        names = {name for match in found for name in ([match] if isinstance(match, str) else match) if name}
        if file.suffix == ".py":  # And what modules beside it declare for it.
            imported = re.findall(r"^(?:from|import) (\w+)", file.read_text(), re.MULTILINE)
            near = [file.with_name(f"{module}.py") for module in imported]
            names |= set().union(*(self.declared(str(each.relative_to(self.root))) for each in near if each.exists()))
        return frozenset(name.replace("-", "_") for name in names)

    @functools.lru_cache
    def flags(self, program):
        """The flags of a program by its name or of a script by its path; None: it is not the tree's."""
        if program in PROGRAMS:
            paths = [str(path.relative_to(self.root)) for glob in PROGRAMS[program] for path in self.root.glob(glob)]
        elif re.search(r"_fuzzer(_replay)?$", program):
            paths = ["tests/fuzz/replay_main.cc"]
        elif (self.root / f"tests/bench/{program}.cc").exists():
            # Those after -- are normd's.
            paths = [f"tests/bench/{program}.cc", "server/config/flags.cc"]
        elif SCRIPT.match(program) and (self.root / program).exists():
            paths = [program]
        else:
            return None
        return ABSL.union(*(self.declared(path) for path in paths if (self.root / path).exists()))

    @functools.lru_cache
    def all_flags(self):
        programs = list(PROGRAMS) + ["x_fuzzer"] + [path.stem for path in self.root.glob("tests/bench/*.cc")]
        for glob in ("tests/**/*.py", "tests/**/*.sh", "deploy/**/*.py", "deploy/**/*.sh", "kernels/**/*.py", "client/**/*.py"):
            programs += [str(path.relative_to(self.root)) for path in self.root.glob(glob)]
        others = {flag.replace("-", "_") for flags in OTHERS.values() for flag in flags.split()}
        return others.union(*(self.flags(program) or set() for program in programs))

    def program(self, word, folder):
        """The program that a word of a command line starts, as flags() takes it; None: another's."""
        if script := SCRIPT.match(word):
            near = str(pathlib.PurePosixPath(folder, script[1]))
            return next((path for path in (script[1], near) if self.flags(path) is not None), None)
        name = word.rpartition("/")[2]
        if "/" in word and not re.match(r"(\./|/usr/|build/|dist/|bin/)", word):
            return None
        return name if self.flags(name) is not None else None


def fits(flag, star, known):
    flag = flag.replace("-", "_")
    if star:
        return any(name.startswith(flag) for name in known)
    return flag in known or (flag.startswith("no") and flag[2:].lstrip("_") in known)


def names_of_cmake(segment, tree):
    """Names in a command of cmake or ctest, or in a built program's path, that no build has: (what, why)."""
    for word in segment.split():
        if built := BUILT.match(word):
            if built[1] not in tree.preset_names("configurePresets"):
                yield word, f"no preset {built[1]!r}"
            if built[2] not in tree.targets:
                yield word, f"no target {built[2]!r}"
    command = re.search(r"\b(cmake|ctest)\b(.*)", segment)
    if not command:
        return
    program, arguments = command.groups()
    kind = "configurePresets"
    if program == "ctest":
        kind = "testPresets"
        for regex in re.findall(r"\s-R[ =]['\"]?([^\s'\"]+)", arguments):
            if not any(re.search(regex, test) for test in tree.tests):
                yield f"-R {regex}", "no such test"
        for label in re.findall(r"\s-L[ =](\w+)", arguments):
            if not any(re.search(label, known) for known in tree.labels):
                yield f"-L {label}", "no such label"
    elif "--build" in arguments:
        kind = "buildPresets"
        for targets in re.findall(r"--target((?:[ =][\w$]+)+)", arguments):
            for target in re.findall(r"[\w$]+", targets):
                if target not in tree.targets and "$" not in target:
                    yield f"--target {target}", "no such target"
    elif "--workflow" in arguments:
        kind = "workflowPresets"
    for preset in re.findall(r"--preset[ =](\w+)", arguments):
        if preset not in tree.preset_names(kind):
            yield f"--preset {preset}", f"not among {kind}"


def line_findings(line, tree, folder=""):
    """Faults in a line of a shell, or in a piece of one: (what, why)."""
    line = re.sub(r"(^|\s)#.*", "", line)
    for segment in ENDS.split(line):
        yield from names_of_cmake(segment, tree)
        words = segment.split()
        if words and words[0] == "kubectl":
            continue  # Its resources have our programs' names.
        program, known = None, None
        if words and FLAG.match(words[0].lstrip("\"'[({")):
            known = tree.all_flags()
        for word in words:
            if (script := SCRIPT.match(word)) and (tree.root / script[1].split("/")[0]).is_dir():
                if not (tree.root / script[1]).exists():
                    yield word, "not in the tree"
            if known is None and (program := tree.program(word.lstrip("$"), folder)):
                known = tree.flags(program)
            if known is not None:
                for flag, star in FLAG.findall(word):
                    if not fits(flag, star, known):
                        yield f"--{flag}", f"no flag of {program}" if program else "no program has this flag"


def page_findings(path, text, tree):
    folder = str(pathlib.PurePosixPath(path).parent)
    for part in pages.parts(text):
        joined = "\n".join(part.lines)
        if part.kind == "code":
            pieces = [(match.start(), match[0]) for match in re.finditer(r"(?:[^\n]*\\\n)*[^\n]*", joined)]
        else:
            pieces = [(match.start(), match[1]) for match in CODE.finditer(joined)]
        for at, piece in pieces:
            piece = re.sub(r"\\?\n\s*", " ", piece)
            for what, why in line_findings(piece, tree, folder):
                yield part.line + joined.count("\n", 0, at), f"{what}: {why}"


def findings(root):
    tree = Tree(root)
    for path in pages.pages(root):
        if path not in LEFT_OUT:
            for line, what in page_findings(path, (tree.root / path).read_text(), tree):
                yield f"{path}:{line}: {what}"


if __name__ == "__main__":
    pages.report(findings, "every flag, target, preset and test that is named is there")
