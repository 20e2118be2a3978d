#!/usr/bin/env python3
"""For the Dockerfile: adds to a folder what its programs need to be the whole root of an image.

    deploy/image/make_root.py DIR --version=0.1.0 --revision=...

DIR/usr/local/bin has the programs. To them it adds, from the packages that are installed here:

- the shared libraries that they load, and the loader, and nothing else of these packages;
- each package's copyright file, in usr/share/doc, the licences that they name, in usr/share/common-licenses,
  and its paragraph in var/lib/dpkg/status.d, where scanners look;
- the user that the service runs as, and the folders that a container's runtime mounts over;
- usr/share/normd/sbom.spdx.json, which names all of it.

--list-only adds the last alone, for an image that has a distribution below it, with usr/share/normd/packages,
the names of the packages that it lacks, and prepare_image.sh, which installs them.
"""

import argparse
import pathlib
import re
import shutil
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import packages
import sbom

# One of each package whose headers are compiled into the programs: nothing that is loaded tells of them.
HEADERS = ("/usr/include/boost/version.hpp", "/usr/include/nlohmann/json.hpp",
           "/usr/include/hwy/highway.h", "/usr/include/spdlog/spdlog.h",
           "/usr/include/absl/base/config.h", "/usr/include/oneapi/tbb/version.h")
# Belongs to the package with all of them, and os-release.
LICENCE = "/usr/share/common-licenses/Apache-2.0"
USER = 10001
PASSWD = ("root:x:0:0:root:/root:/usr/sbin/nologin\n"
          f"normd:x:{USER}:{USER}::/nonexistent:/usr/sbin/nologin\n")
GROUP = f"root:x:0:\nnormd:x:{USER}:\n"
NSSWITCH = "passwd: files\ngroup: files\nhosts: files dns\n"
# Where a runtime mounts, or a test does.
FOLDERS = ("dev", "proc", "run", "sys", "models")
MERGED = ("bin", "lib", "lib64", "sbin")


def write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def merged(path):
    """The path with what lies in /lib named by where it lies, /usr/lib."""
    path = pathlib.Path(path)
    return pathlib.Path("/usr") / path.relative_to("/") if path.parts[1] in MERGED else path


def add_library(root, name):
    """Copies the file, under its own name, and links the name by which it is loaded to it."""
    real, name = name.resolve(), merged(name)
    target = root / real.relative_to("/")
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy2(real, target)
    link = root / name.relative_to("/")
    if name != real and not link.is_symlink():
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(pathlib.Path("/") / real)
    return real


def add_package(root, package):
    # Some packages' folders are links to another's.
    write(root / package.copyright_file.relative_to("/"),
          package.copyright_file.read_text(encoding="utf-8", errors="replace"))
    write(root / "var/lib/dpkg/status.d" / package.name, packages.status(package.name))


def add_system(root):
    for name in MERGED:
        (root / "usr" / name).mkdir(parents=True, exist_ok=True)
        (root / name).symlink_to(pathlib.Path("usr", name))
    for name in FOLDERS:
        (root / name).mkdir(exist_ok=True)
    (root / "tmp").mkdir()
    (root / "tmp").chmod(0o1777)
    write(root / "etc/passwd", PASSWD)
    write(root / "etc/group", GROUP)
    write(root / "etc/nsswitch.conf", NSSWITCH)
    shutil.copy2(pathlib.Path("/etc/os-release").resolve(), root / "etc/os-release")
    shutil.copytree("/usr/share/common-licenses", root / "usr/share/common-licenses")


def built_from(program):
    """The revision that a program was built from, "unknown" where its build did not know."""
    said = subprocess.run([program, "--version"], check=True, stdout=subprocess.PIPE, text=True).stdout
    match = re.search(r"\((\S+)\)$", said.strip())
    return match[1] if match else "unknown"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("root", type=pathlib.Path)
    parser.add_argument("--version", required=True)
    parser.add_argument("--revision", default="unknown")
    parser.add_argument("--list-only", action="store_true")
    options = parser.parse_args()
    root = options.root.resolve()
    programs = sorted((root / "usr/local/bin").iterdir())
    if options.revision == "unknown":
        options.revision = built_from(root / "usr/local/bin/normctl")
    names = packages.shared_libraries(programs)
    headers = [header for header in HEADERS if pathlib.Path(header).exists()]
    owners = packages.owners([*names, *headers, LICENCE])
    base = owners.pop(pathlib.Path(LICENCE))
    compiled_in = [owners.pop(pathlib.Path(header)) for header in headers]
    if options.list_only:
        write(root / "usr/share/normd/packages",
              "".join(f"{name}\n" for name in sorted({one.name for one in owners.values()})))
        shutil.copy2(pathlib.Path(__file__).resolve().parents[1] / "prepare_image.sh",
                     root / "usr/share/normd")
    else:
        add_system(root)
        for name in names:
            add_library(root, name)
        for package in {*owners.values(), *compiled_in, base}:
            add_package(root, package)
    # Two names may lead to one file.
    files = {name.resolve(): owners[name] for name in names}
    write(root / "usr/share/normd/sbom.spdx.json", sbom.document(
        (options.version, options.revision),
        [(pathlib.Path("/") / one.relative_to(root), one.read_bytes()) for one in programs],
        [(path, path.read_bytes(), package) for path, package in sorted(files.items())],
        compiled_in, base))


if __name__ == "__main__":
    main()
