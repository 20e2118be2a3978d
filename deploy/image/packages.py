"""What the distribution's package manager knows of files: dpkg's, so Debian and Ubuntu."""

import dataclasses
import pathlib
import re
import subprocess


@dataclasses.dataclass(frozen=True)
class Package:
    """An installed package."""

    name: str
    version: str
    architecture: str
    source: str  # The source package that it is built from.
    source_version: str
    homepage: str
    maintainer: str

    @property
    def copyright_file(self):
        return pathlib.Path("/usr/share/doc", self.name, "copyright")

    def licences(self):
        """The names that a copyright file in Debian's machine-readable form gives, else none."""
        text = self.copyright_file.read_text(encoding="utf-8", errors="replace")
        if not text.startswith("Format:"):
            return []
        names = re.findall(r"^License:[ \t]*(\S.*)$", text, re.MULTILINE)
        return sorted({name.strip() for name in names})


FIELDS = ("Package", "Version", "Architecture", "source:Package", "source:Version", "Homepage",
          "Maintainer")


def output(*command):
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def package(name):
    form = "\\n".join(f"${{{field}}}" for field in FIELDS)
    return Package(*output("dpkg-query", "-W", f"-f={form}", name).split("\n"))


def status(name):
    """The package's paragraph of dpkg's status file."""
    return output("dpkg-query", "-s", name)


def other_name(path):
    """Since /lib is a link to /usr/lib, a package may have put a file there by either name."""
    return (pathlib.Path("/") / path.relative_to("/usr") if path.is_relative_to("/usr") else
            pathlib.Path("/usr") / path.relative_to("/"))


def owners(paths):
    """The package that has put each file there, by its path. KeyError: none has."""
    paths = [pathlib.Path(path) for path in paths]
    asked = {str(name) for path in paths for name in (path, other_name(path))}
    # One question for all: each takes dpkg a look through all that it knows. It fails for each name that
    # is not a package's.
    answer = subprocess.run(["dpkg-query", "-S", *sorted(asked)], capture_output=True, text=True,
                            check=False).stdout
    names = {}
    for line in answer.splitlines():
        owner, _, path = line.rpartition(": ")
        if path in asked and not owner.startswith("diversion"):
            names[path] = owner.split(",")[0].strip()
    known = {}
    found = {}
    for path in paths:
        name = names.get(str(path)) or names.get(str(other_name(path)))
        if name is None:
            raise KeyError(f"{path}: no package owns it")
        known[name] = known.get(name) or package(name)
        found[path] = known[name]
    return found


def shared_libraries(programs):
    """What the dynamic loader opens for the programs, itself included: the names by which it does."""
    found = set()
    for program in programs:
        for line in output("ldd", str(program)).splitlines():
            if "not found" in line:
                raise FileNotFoundError(f"{program}: {line.strip()}")
            match = re.search(r"(/\S+) \(0x", line)
            if match:
                found.add(pathlib.Path(match.group(1)))
    return sorted(found)
