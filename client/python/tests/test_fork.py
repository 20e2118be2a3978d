"""Clients in forked processes: a region has one owner, and results stay in each of them."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from conftest import LIMIT_S
from test_shared_memory import SharingServer

BEGIN = """
import gc, os, sys
import numpy as np
import normd

MODEL = "instance_norm_64"
x = [np.random.default_rng(k).normal(size=(2, 64, 16, 16)).astype("f4") for k in range(3)]
with normd.Client(sys.argv[1], shared_memory="off") as far:
    expected = [far.normalize(MODEL, each).tobytes() for each in x]
client = normd.Client(sys.argv[1])

def near(k):
    "A result in a region; the call after a lost connection goes in a message."
    while isinstance((y := client.normalize(MODEL, x[k])).base, bytes):
        pass
    return y

def forked(work):
    "A child, which runs the two halves of `work`, and the function that ends it."
    begun, go = os.pipe(), os.pipe()
    child = os.fork()
    if child == 0:
        os.close(go[1])  # Ends with the parent.
        try:
            halves = work()
            next(halves)
            os.write(begun[1], b".")
            os.read(go[0], 1)
            next(halves, None)
            os._exit(0)
        finally:
            os.write(begun[1], b".")
            os._exit(1)
    os.read(begun[0], 1)
    def end():
        os.write(go[1], b".")
        assert os.waitpid(child, 0)[1] == 0
    return end
"""

SIBLINGS = """
near(0)  # Its region is free again.
def first():
    y = near(1)
    assert y.tobytes() == expected[1]
    yield
    assert y.tobytes() == expected[1]
def second():
    assert near(2).tobytes() == expected[2]
    yield
ends = [forked(first), forked(second)]
assert near(0).tobytes() == expected[0]
for end in ends:
    end()
"""

CHILD_DROPS = """
y = near(0)
def work():
    global y
    del y
    gc.collect()
    assert near(1).tobytes() == expected[1]
    yield
forked(work)()
assert y.tobytes() == expected[0]
"""

PARENT_DROPS = """
y = near(0)
def work():
    yield
    assert y.tobytes() == expected[0]
end = forked(work)
del y
gc.collect()
assert near(1).tobytes() == expected[1]
end()
"""

CALLERS_REGION = """
region = client.share(x[0].nbytes)
there = region.array(x[0].shape)
there[...] = x[0]
def work():
    assert region.closed
    assert client.normalize(MODEL, there).tobytes() == expected[0]
    yield
end = forked(work)
assert len(client.list_shared_memory()) == 2, "the parent's and the child's own"
assert client.normalize(MODEL, there).tobytes() == expected[0]
region.close()
while len(client.list_shared_memory()) > 2:
    pass  # The server sees the end of the connection, whatever lives in the child.
end()
"""


@pytest.fixture(scope="module")
def sharing(binaries: Path, tmp_path_factory: Any) -> Any:
    with contextlib.closing(SharingServer(binaries, tmp_path_factory.mktemp("fork"))) as running:
        yield running


@pytest.mark.parametrize("case", [SIBLINGS, CHILD_DROPS, PARENT_DROPS, CALLERS_REGION])
def test_results_stay_in_both_processes(sharing, case):
    command = [sys.executable, "-W", "ignore", "-c", BEGIN + case, sharing.address]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=LIMIT_S)
    assert done.returncode == 0, done.stderr
    assert sharing.received() > 0, "the clients use regions"


AIO = """
import asyncio, os, sys
import numpy as np
import normd

x = np.ones((1, 64, 4), "f4")
before = normd.aio.Client(sys.argv[1])

async def call(client, method):
    await getattr(client, method)("instance_norm_64", x)

for first, client, method in (
    ("normalize", before, "normalize"),
    ("normalize", before, "normalize_stream"),
    ("normalize_stream", normd.aio.Client(sys.argv[1]), "normalize"),
):
    asyncio.run(call(before, first))
    child = os.fork()
    if child == 0:
        try:
            asyncio.run(call(client, method))
        except normd.InvalidArgumentError as error:
            os._exit(0 if error.field == "client" and "forked" in error.message else 2)
        os._exit(1)
    assert os.waitpid(child, 0)[1] == 0, method
asyncio.run(call(before, "normalize"))
"""


def test_a_forked_child_is_refused_an_aio_client(sharing):
    command = [sys.executable, "-W", "ignore", "-c", AIO, sharing.address]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=LIMIT_S)
    assert done.returncode == 0, done.stderr
