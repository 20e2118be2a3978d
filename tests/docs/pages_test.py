#!/usr/bin/env python3
"""Runs the shell and Python snippets of README.md, docs/*.md and the Python client's page, as they stand there.

    tests/docs/pages_test.py --bin=build/dev/bin --python=VENV/bin/python [--triton=VENV/bin/python] [PAGE...]

Each page has a folder of its own with the demo models, and a normd that serves them at the ports that pages name;
what a page starts itself takes its place until the block's end. For that, all runs in a network and a /run of its
own, where 8001 and 8002 are free. Loads are short: see SHORT. --python: where the client is installed; --triton:
where Triton's may be. Prints what was left out and why, and each failure with its page and line, and exits with 1
if there is any, with 77, which ctest shows as skipped, without the client or where no namespace can be made.
"""

import argparse
import contextlib
import json
import os
import pathlib
import re
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time

import given
import snippets

ROOT = snippets.ROOT
SKIPPED = 77
LIMIT_S = 600  # For a piece: only one that hangs takes so long.
# Before a page's own flags, which win. A busy machine may miss deadlines.
SHORT = {"normload": "--duration=500ms --warmup=100ms --max_error_share=1", "normd": "--lame_duck=0s"}
SERVER = ["--shared_memory=named", "--shared_memory_listen=unix:///run/normd/regions"]

# A program on the path.
AS_IT_IS = """#!/bin/bash
exec {program} "$@"
"""
# Its runs are short.
SHORTENED = """#!/bin/bash
case " $* " in *" --find_max "*) set -- "$@" --slo=p99=300ms ;; esac  # One that a busy machine meets, too.
case $1 in -*) exec {program} {flags} "$@" ;; *) exec {program} "$@" ;; esac
"""
# It comes back as soon as it serves.
STARTED = """#!/bin/bash
for flag; do case $flag in --help|--version) exec {program} "$@" ;; esac; done
log=$(mktemp {folder}/normd.XXXXXX)
{program} {flags} "$@" >"$log" 2>&1 &
echo $! >>{folder}/pids
for ((i = 0; i < 400; ++i)); do
  if grep -q 'serving: ' "$log"; then exit; fi
  kill -0 $! 2>/dev/null || break
  sleep 0.05
done
cat "$log" >&2
exit 1
"""


def has(python, module):
    """Whether that Python can import the module."""
    with contextlib.suppress(OSError):
        return subprocess.run([python, "-c", f"import {module}"], capture_output=True, check=False).returncode == 0
    return False


def in_namespace():
    """Runs this script again where ports and /run are its own; returns there."""
    if os.environ.get("NORMD_PAGES_NAMESPACE"):
        subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
        subprocess.run(["mount", "-t", "tmpfs", "none", "/run"], check=True)
        for folder in ("/run/normd", "/run/user/1000"):
            os.makedirs(folder)
        return
    namespace = ["unshare", "--map-root-user", "--net", "--mount"]
    probe = [*namespace, "sh", "-c", "ip link set lo up && mount -t tmpfs none /run"]
    try:
        can = subprocess.run(probe, capture_output=True, text=True, check=False)
    except FileNotFoundError as error:
        can = subprocess.CompletedProcess(probe, 1, stderr=str(error))
    if can.returncode != 0:
        print(f"skipped: no namespace of its own: {can.stderr.strip()}")
        sys.exit(SKIPPED)
    os.environ["NORMD_PAGES_NAMESPACE"] = "1"
    os.execvp("unshare", [*namespace, sys.executable, "-B", *sys.argv])


class Session:
    """A Python that keeps the names of a page's pieces."""

    def __init__(self, python, environment, errors):
        self._process = subprocess.Popen(
            [python, "-B", str(pathlib.Path(__file__).with_name("python_session.py"))], env=environment,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True)

    def run(self, **piece):
        self._process.stdin.write(json.dumps(piece) + "\n")
        self._process.stdin.flush()
        if not select.select([self._process.stdout], [], [], LIMIT_S)[0]:
            self._process.kill()
            return {"error": f"no end after {LIMIT_S} s", "line": piece["line"]}
        return json.loads(self._process.stdout.readline() or '{"error": "Python ended"}')

    def close(self):
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        self._process.kill()
        self._process.wait()


class Page:
    def __init__(self, path, options, folder):
        self.path, self.options = path, options
        self.control = folder / "control"  # The shims, the logs, and what serves.
        self.folder = folder / "work"
        self.failures, self.left_out, self.ran = [], [], 0
        self._sessions = {}
        self._at = self.folder  # Where a block's shell is.
        self._block = None
        self._own = False  # The page's own server serves.
        self._make_folders()
        self.environment = {
            **os.environ, "PATH": f"{self.control}:{os.environ['PATH']}", "PYTHONDONTWRITEBYTECODE": "1",
            "HOME": str(folder),
            "OMP_NUM_THREADS": "1"}  # PyTorch's: several that wait for one another crawl on a busy machine.

    def _make_folders(self):
        programs = self.options.bin.resolve()
        self.control.mkdir()
        forms = {"normd": (STARTED, programs / "normd"), "normload": (SHORTENED, programs / "normload"),
                 "normctl": (AS_IT_IS, programs / "normctl"), "python3": (AS_IT_IS, self.options.python.absolute())}
        for name, (form, program) in forms.items():
            text = form.format(program=program, flags=SHORT.get(name, ""), folder=self.control)
            (self.control / name).write_text(text)
            (self.control / name).chmod(0o755)
        (self.folder / "build").mkdir(parents=True)
        for preset in ("dev", "release"):
            (self.folder / "build" / preset).mkdir()
            (self.folder / "build" / preset / "bin").symlink_to(self.control)
        for source in {*ROOT.iterdir(), *(ROOT / self.path).parent.iterdir()}:
            if source.name not in ("build", "dist") and not source.name.startswith("."):
                if not (self.folder / source.name).exists():
                    (self.folder / source.name).symlink_to(source)
        shutil.copytree(ROOT / "deploy/models", self.folder / "models")
        for name, shape in given.TENSORS.items():
            subprocess.run([programs / "normctl", "random", name, f"--shape={shape}"], cwd=self.folder, check=True,
                           capture_output=True, timeout=LIMIT_S)
        for name, model in given.MODELS.items():
            shutil.copytree(ROOT / "deploy/models" / model, self.folder / "models" / name)

    def serve(self):
        """Starts a normd on the page's models if none serves."""
        pids = self.control / "pids"
        if not pids.exists():
            command = [self.control / "normd", f"--model_repository={self.folder}/models", *SERVER]
            subprocess.run(command, check=True, cwd=self.folder, env=self.environment, timeout=LIMIT_S)

    def stop(self):
        pids = self.control / "pids"
        for pid in map(int, pids.read_text().split()) if pids.exists() else []:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)
                for _ in range(200):
                    os.kill(pid, 0)
                    time.sleep(0.05)
                os.kill(pid, signal.SIGKILL)
        pids.unlink(missing_ok=True)

    def fail(self, line, what):
        self.failures.append(f"{self.path}:{line}: {what}")

    def leave_out(self, line, what, why):
        self.left_out.append(f"{self.path}:{line}: left out: {why}: {what.split('#')[0].strip()[:60]}")

    def run(self, snippet):
        if snippet.block != self._block:
            if self._own:
                self.stop()
            self._block, self._own, self._at = snippet.block, False, self.folder
        if snippet.not_run:
            return self.leave_out(snippet.line, snippet.rows[0], snippet.not_run)
        if snippet.kind in ("python", "doctest"):
            return self.run_python(snippet)
        return self.run_shell(snippet) if snippet.kind == "shell" else self.run_console(snippet)

    def session(self, text):
        python = self.options.triton if "tritonclient" in text else self.options.python
        if python and python not in self._sessions:
            errors = (self.control / "python_errors").open("a")
            session = self._sessions[python] = Session(python, self.environment, errors)
            for code in given.python(self.path, triton=python != self.options.python):
                session.run(page="given.py", line=1, text=code, folder=str(self.folder), doctest=False)
        return self._sessions.get(python)

    def run_python(self, snippet):
        text = "\n".join(snippet.rows)
        self.serve()
        session = self.session(text)
        if not session:
            return self.leave_out(snippet.line, text, "Triton's client is not installed")
        result = session.run(page=self.path, line=snippet.line, text=text + "\n", folder=str(self._at),
                             doctest=snippet.kind == "doctest")
        if (missing := result.get("missing")) and missing.split(".")[0] in given.NOT_OURS:
            return self.leave_out(snippet.line, text, f"{missing} is not installed")
        self.ran += 1
        if result["error"]:
            self.fail(result.get("line", snippet.line), result["error"])
        return None

    def run_shell(self, snippet):
        rows = list(snippet.rows)
        for at, command in snippets.commands(snippet.rows):
            if why := why_not("\n".join(command)):
                self.leave_out(snippet.line + at, command[0], why)
                rows[at : at + len(command)] = [""] * len(command)
        if any(row.strip() and not row.lstrip().startswith("#") for row in rows):
            self.bash(snippet.line, rows)

    def run_console(self, snippet):
        at = 0
        while at < len(snippet.rows):
            first, command = at, snippet.rows[at].removeprefix("$ ")
            at += 1
            while at < len(snippet.rows) and not snippet.rows[at].startswith("$ "):
                at += 1
            if why := why_not(command):
                self.leave_out(snippet.line + first, command, why)
                continue
            printed = self.bash(snippet.line + first, [command])
            wanted = "\n".join(snippet.rows[first + 1 : at])
            if printed is not None and (said := likeness(printed)) != likeness(wanted):
                self.fail(snippet.line + first, f"{command}\n  printed {said}\n  wanted  {likeness(wanted)}")

    def bash(self, line, rows):
        """Runs rows of a shell, which begin at a line of the page; returns what they print, or None if they fail."""
        if re.search(r"(^|[;&|]\s*|bin/)normd( |$)", "\n".join(rows), re.MULTILINE):
            self.stop()
            self._own = True
        else:
            self.serve()
        script = self.control / "snippet.sh"
        for told in ("line", "at"):
            (self.control / told).unlink(missing_ok=True)
        # As many lines as the page has before them, the first of which are this test's.
        said = f"trap 'echo $LINENO >{self.control}/line' ERR; trap 'pwd >{self.control}/at' EXIT"
        script.write_text(said + "\n" * (line - 1) + "\n".join(rows) + "\n")
        self.ran += 1
        try:
            done = subprocess.run(
                ["bash", "-eE", script], cwd=self._at, env=self.environment, stdin=subprocess.DEVNULL,
                capture_output=True, text=True, timeout=LIMIT_S, check=False)
        except subprocess.TimeoutExpired:
            self.fail(line, f"no end after {LIMIT_S} s: {rows[0]}")
            return None
        if (self.control / "at").exists():
            self._at = pathlib.Path((self.control / "at").read_text().strip())
        if done.returncode == 0:
            return done.stdout
        where = int((self.control / "line").read_text()) if (self.control / "line").exists() else line
        what = rows[where - line] if 0 <= where - line < len(rows) else rows[0]
        self.fail(where, f"exit code {done.returncode}: {what}\n" + (done.stdout + done.stderr)[-1500:])
        return None

    def close(self):
        for session in self._sessions.values():
            session.close()
        self.stop()


def why_not(command):
    """Why a shell's command does not run here; empty: it does."""
    missing = [tool for tool in given.TOOLS if re.search(rf"\b{tool}\b", command) and not shutil.which(tool)]
    return f"{missing[0]} is not installed" if missing else snippets.elsewhere(command, snippets.COMMANDS)


def likeness(text):
    """Its words, with every number as #."""
    return re.sub(r"\d[\d.,]*", "#", " ".join(text.split()))


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--bin", required=True, type=pathlib.Path)
    parser.add_argument("--python", required=True, type=pathlib.Path)
    parser.add_argument("--triton", type=pathlib.Path)
    parser.add_argument("pages", nargs="*")
    options = parser.parse_args()
    if not has(options.python, "normd"):
        print(f"skipped: {options.python} has no Python client")
        sys.exit(SKIPPED)
    if options.triton and not has(options.triton, "tritonclient"):
        options.triton = None
    in_namespace()
    docs = sorted(str(path.relative_to(ROOT)) for path in ROOT.glob("docs/*.md"))
    failures, ran, left_out = [], 0, 0
    for path in options.pages or ["README.md", *docs, "client/python/README.md"]:
        with tempfile.TemporaryDirectory() as folder:
            page = Page(path, options, pathlib.Path(folder))
            try:
                for snippet in snippets.snippets((ROOT / path).read_text()):
                    page.run(snippet)
            finally:
                page.close()
        for row in page.left_out + page.failures:
            print(row, flush=True)
        failures += page.failures
        ran, left_out = ran + page.ran, left_out + len(page.left_out)
    print(f"{ran} snippets ran, {len(failures)} failed, {left_out} left out")
    return 1 if failures or not ran else 0


if __name__ == "__main__":
    sys.exit(main())
