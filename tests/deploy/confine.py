#!/usr/bin/env python3
"""Runs a program confined as a container's runtime does it.

    confine.py [--profile=FILE [--default=kill]] [--root=DIR] [--user=UID:GID] -- COMMAND...

It can gain no privileges (no_new_privs). Beyond that, as the flags say:

--profile   a seccomp profile in Docker's format. Needs libseccomp 2.4 (Debian: libseccomp2) or newer
            and no privileges; exits with 77 where the kernel or the library is missing.
--default   replaces the profile's default action: `kill` ends the process at a call that the
            profile does not list, which shows that a program makes none.
--root      the root folder; as root alone, like the next.
--user      whom it runs as: in no other group, and without a capability, now or later.
"""

import argparse
import ctypes
import functools
import json
import os
import pathlib
import sys

SKIPPED = 77
PR_SET_NO_NEW_PRIVS = 38
PR_CAPBSET_DROP = 24
PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL = 47, 4
# As the header of libseccomp has them.
ACTIONS = {
    "SCMP_ACT_KILL_PROCESS": lambda errno: 0x80000000,
    "SCMP_ACT_ERRNO": lambda errno: 0x00050000 | errno,
    "SCMP_ACT_ALLOW": lambda errno: 0x7FFF0000,
}
OPERATORS = {
    "SCMP_CMP_NE": 1, "SCMP_CMP_LT": 2, "SCMP_CMP_LE": 3, "SCMP_CMP_EQ": 4,
    "SCMP_CMP_GE": 5, "SCMP_CMP_GT": 6, "SCMP_CMP_MASKED_EQ": 7,
}
UNKNOWN_CALL = -1


class Unavailable(Exception):
    """This machine has no seccomp, or no library for it."""


class Comparison(ctypes.Structure):
    _fields_ = [("argument", ctypes.c_uint), ("operator", ctypes.c_int),
                ("first", ctypes.c_uint64), ("second", ctypes.c_uint64)]


@functools.lru_cache
def library():
    try:
        loaded = ctypes.CDLL("libseccomp.so.2", use_errno=True)
    except OSError as error:
        raise Unavailable(f"no libseccomp.so.2 (Debian's package libseccomp2): {error}") from error
    loaded.seccomp_init.restype = ctypes.c_void_p
    loaded.seccomp_init.argtypes = [ctypes.c_uint32]
    loaded.seccomp_load.argtypes = [ctypes.c_void_p]
    loaded.seccomp_syscall_resolve_name.argtypes = [ctypes.c_char_p]
    loaded.seccomp_rule_add_array.argtypes = [
        ctypes.c_void_p, ctypes.c_uint32, ctypes.c_int, ctypes.c_uint,
        ctypes.POINTER(Comparison)]
    return loaded


def action_of(entry, action_key, errno_key):
    return ACTIONS[entry[action_key]](entry.get(errno_key, 1))


def add_rules(loaded, context, rules):
    for rule in rules:
        comparisons = [Comparison(one["index"], OPERATORS[one["op"]], one["value"],
                                  one.get("valueTwo", 0)) for one in rule.get("args", [])]
        array = (Comparison * len(comparisons))(*comparisons)
        for name in rule["names"]:
            number = loaded.seccomp_syscall_resolve_name(name.encode())
            if number == UNKNOWN_CALL:
                continue  # The library is older than the call; runtimes pass over it, too.
            result = loaded.seccomp_rule_add_array(
                context, action_of(rule, "action", "errnoRet"), number, len(array), array)
            if result != 0:
                raise ValueError(f"{name}: {os.strerror(-result)}")


def prctl(*arguments):
    call = ctypes.CDLL(None, use_errno=True).prctl
    return call(*[ctypes.c_ulong(argument) for argument in (*arguments, 0, 0, 0, 0)[:5]])


def set_no_new_privileges():
    if prctl(PR_SET_NO_NEW_PRIVS, 1) != 0:
        raise Unavailable("no PR_SET_NO_NEW_PRIVS")


def install(profile, default=None):
    """From here on the calling thread, and what it starts, makes only the profile's calls.

    `default`, an action and an error, takes the place of the profile's own. Raises Unavailable
    where that cannot be, and then nothing is installed.
    """
    loaded = library()
    action = (ACTIONS[default[0]](default[1]) if default
              else action_of(profile, "defaultAction", "defaultErrnoRet"))
    context = loaded.seccomp_init(action)
    if not context:
        raise Unavailable("seccomp_init failed")
    add_rules(loaded, context, profile["syscalls"])
    set_no_new_privileges()
    result = loaded.seccomp_load(context)
    if result != 0:
        raise Unavailable(f"the filter cannot be loaded: {os.strerror(-result)}")


def read(path):
    return json.loads(pathlib.Path(path).read_text(encoding="utf-8"))


def change_user(user):
    """Gives up root with every capability."""
    uid, gid = map(int, user.split(":"))
    capability = 0
    while prctl(PR_CAPBSET_DROP, capability) == 0:  # Fails behind the last one.
        capability += 1
    prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL)
    os.setgroups([])
    os.setresgid(gid, gid, gid)
    os.setresuid(uid, uid, uid)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--profile", type=pathlib.Path)
    parser.add_argument("--default", choices=["kill"])
    parser.add_argument("--root")
    parser.add_argument("--user")
    parser.add_argument("command", nargs="+")
    options = parser.parse_args()
    profile = options.profile and read(options.profile)
    try:
        if profile:
            library()  # Before the root changes.
        if options.root:
            os.chroot(options.root)
            os.chdir("/")
        if options.user:
            change_user(options.user)
        set_no_new_privileges()
        if profile:
            install(profile, ("SCMP_ACT_KILL_PROCESS", 0) if options.default == "kill" else None)
    except Unavailable as error:
        print(f"skipped: {error}", file=sys.stderr)
        return SKIPPED
    os.execvp(options.command[0], options.command)


if __name__ == "__main__":
    sys.exit(main())
