#!/usr/bin/env python3
"""Looks at a normd from outside: protocols, ciphers, certificates, bad files, rights on every plane,
rotation.

    tests/tls/tls_probe.py --bin=build/dev/bin --source=. [-k NAME]
    tests/tls/tls_probe.py --bin=build/release/bin --source=. -k under_load --rate=10000 --seconds=60 --slack=2

Certificates come from deploy/make_certificates.sh; openssl s_client is the client that offers what no
other does, python3-h2 the one that calls any method; exit code 77 without it. Each test is a promise of
docs/security.md.
"""

import argparse
import io
import multiprocessing
import os
import pathlib
import sys
import unittest

try:
    import h2.connection  # noqa: F401
except ImportError:
    print("skipped: python3-h2 is not installed")
    sys.exit(77)

# The tests are found here by unittest.
from file_tests import Exchanged, Starts  # noqa: F401
from handshake_tests import Handshakes, Policies  # noqa: F401
from plane_tests import AdminCalls, Handover, Quotas, Secrets  # noqa: F401
from probe import options
from rotation_tests import Rotation  # noqa: F401
from socket_tests import UnixSockets  # noqa: F401


TESTS = []


def play(number):
    """Runs a test; returns how many ran, whether it passed, and what is to be read."""
    said = io.StringIO()
    result = unittest.TextTestRunner(stream=said).run(unittest.TestSuite([TESTS[number]]))
    return result.testsRun, result.wasSuccessful(), f"{TESTS[number].id()}: {said.getvalue()}"


class Together(unittest.TextTestRunner):
    """Runs each test in a process of its own, several at once: most of the time they wait."""

    def run(self, test):
        def leaves(suite):
            for one in suite:
                yield from leaves(one) if isinstance(one, unittest.TestSuite) else [one]

        TESTS.extend(leaves(test))
        together = unittest.TestResult()
        with multiprocessing.get_context("fork").Pool(options.jobs) as pool:
            for one, (ran, passed, said) in zip(TESTS, pool.imap(play, range(len(TESTS)))):
                print(said, file=sys.stderr, flush=True)
                together.testsRun += ran
                if not passed:
                    together.failures.append((one, said))
        return together


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bin", type=pathlib.Path, required=True)
    parser.add_argument("--source", type=pathlib.Path, required=True)
    parser.add_argument("--rate", type=float, default=1000, help="calls/s of Rotation.test_under_load")
    parser.add_argument("--share", type=float, default=0.5,
                        help="no more than this share of what the machine gives in a closed loop")
    parser.add_argument("--seconds", type=int, default=6, help="how long it goes on")
    parser.add_argument("--slack", type=float, default=20, help="seconds until a withdrawn token must be "
                        "refused; 2 is promised, on a machine that has time for it")
    parser.add_argument("--jobs", type=int, default=1, help="tests at once")
    _, rest = parser.parse_known_args(namespace=options)
    os.environ.pop("OPENSSL_CONF", None)
    unittest.main(argv=[sys.argv[0], *rest], testRunner=None if options.jobs == 1 else Together)


if __name__ == "__main__":
    main()
