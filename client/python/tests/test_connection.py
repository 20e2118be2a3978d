"""How both clients connect, try again, and wait: what they say when it cannot succeed."""

from __future__ import annotations

import asyncio
import logging
import subprocess
import sys
import threading
import time
from concurrent import futures

import grpc
import numpy as np
import pytest
from conftest import ANSWER, Refuses, Server

import normd
from normd import _in_flight, retry
from normd._in_flight import Gate

X = np.ones(1, "f4")


def test_retries_last_as_long_as_the_timeout(make_client, fake_server):
    fast = normd.Retry(initial=0.001, longest=0.002)
    client = make_client(fake_server(Normalize=Refuses(40)).address, retry=fast)
    assert client.normalize("m", X).tolist() == [1.0]
    client = make_client(fake_server(Normalize=Refuses(10**9)).address, retry=fast)
    begin = time.monotonic()
    with pytest.raises((normd.UnavailableError, normd.DeadlineExceededError)):
        client.normalize("m", X, timeout=0.5)
    assert time.monotonic() - begin > 0.4


@pytest.mark.parametrize("method", ["normalize", "list_models", "wait_ready"])
def test_calls_wait_for_a_server_that_starts_later(make_client, own_server, binaries, method):
    """A restart, of some seconds: no call fails meanwhile."""
    client = make_client(own_server.address)
    client.wait_ready()
    own_server.kill()
    again: list[Server] = []
    restart = threading.Timer(
        1.0, lambda: again.append(Server(binaries, f"--listen={own_server.address}"))
    )
    restart.start()
    x = np.ones((1, 64, 2, 2), "f4")
    getattr(client, method)(*["instance_norm_64", x] if method == "normalize" else [])
    restart.join()
    again[0].close()


def test_without_a_timeout_retries_end_too(monkeypatch, make_client, fake_server):
    monkeypatch.setattr(retry, "_WITHOUT_TIMEOUT_S", 0.3)
    fast = normd.Retry(initial=0.001, longest=0.002)
    server = fake_server(
        Normalize=Refuses(10**9), NormalizeStream=lambda r, c: c.abort(UNAVAILABLE, "")
    )
    client = make_client(server.address, timeout=None, retry=fast)
    for call in (client.normalize, client.normalize_stream):
        with pytest.raises(normd.UnavailableError):
            call("m", X)


UNAVAILABLE = grpc.StatusCode.UNAVAILABLE


@pytest.mark.parametrize(
    ("code", "pushback", "level"),
    [(UNAVAILABLE, None, "WARNING"), (grpc.StatusCode.RESOURCE_EXHAUSTED, 1, "INFO")],
)
def test_retries_are_logged(make_client, fake_server, caplog, code, pushback, level):
    client = make_client(
        fake_server(Normalize=Refuses(2, code, pushback)).address, retry=normd.Retry(initial=0.001)
    )
    with caplog.at_level(logging.INFO, "normd"):
        client.normalize("m", X)
    lines = [each for each in caplog.records if each.name == "normd"]
    assert [each.levelname for each in lines] == [level] * 2
    assert "attempt 2 failed" in lines[1].getMessage()
    assert f"{client.target}: queue: full" in lines[1].getMessage()


@pytest.fixture(scope="module")
def certificate(tmp_path_factory):
    """(key, certificate) of localhost, in PEM."""
    folder = tmp_path_factory.mktemp("tls")
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"]
    names = ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"]
    subprocess.run(
        [*command, "-keyout", "key", "-out", "cert", *names],
        check=True,
        capture_output=True,
        cwd=folder,
    )
    return (folder / "key").read_bytes(), (folder / "cert").read_bytes()


@pytest.fixture(scope="module")
def ports(certificate):
    """A server without methods: in the clear, by TLS, and by TLS with certificates of clients."""
    _, cert = certificate
    server = grpc.server(futures.ThreadPoolExecutor(2))
    tls = grpc.ssl_server_credentials([certificate])
    mutual = grpc.ssl_server_credentials([certificate], cert, True)
    found = {
        "clear": server.add_insecure_port("127.0.0.1:0"),
        "tls": server.add_secure_port("127.0.0.1:0", tls),
        "mutual": server.add_secure_port("127.0.0.1:0", mutual),
    }
    server.start()
    yield found
    server.stop(None).wait(60)


@pytest.mark.parametrize("method", ["wait_ready", "list_models", "normalize", "normalize_stream"])
@pytest.mark.parametrize(
    ("port", "trusted", "name", "kind", "words"),
    [
        ("tls", None, None, normd.InvalidArgumentError, "the server speaks TLS"),
        ("mutual", None, None, normd.InvalidArgumentError, "the server speaks TLS"),
        ("tls", b"other", None, normd.UnauthenticatedError, "CERTIFICATE_VERIFY_FAILED"),
        ("tls", True, "elsewhere", normd.UnauthenticatedError, "a server that they trust"),
        ("clear", True, None, normd.UnauthenticatedError, "WRONG_VERSION_NUMBER"),
        ("tls", True, None, normd.UnimplementedError, ""),
        ("clear", None, None, normd.UnimplementedError, ""),
    ],
)
def test_who_disagrees_about_tls_is_told_at_once(
    make_client, certificate, ports, method, port, trusted, name, kind, words
):
    credentials = None
    if trusted is not None:
        roots = certificate[1] if trusted is True else None
        credentials = grpc.ssl_channel_credentials(roots)
    target, server_name = f"127.0.0.1:{ports[port]}", name or "localhost"
    client = make_client(
        target, credentials=credentials, server_name=server_name if trusted else None
    )
    begin = time.monotonic()
    with pytest.raises(kind, match=words):
        getattr(client, method)(*["m", X] if method.startswith("norm") else [])
    assert time.monotonic() - begin < 30


def test_wait_ready_says_what_it_waited_for(make_client, fake_server):
    with pytest.raises(normd.DeadlineExceededError, match=r"refused|Connection") as error:
        make_client("127.0.0.1:1").wait_ready(timeout=0.5)
    assert error.value.field == "timeout"


@pytest.mark.parametrize("token", ["secret\n", "two words", "", "tab\t", "é", "\x7f", "a\x00b"])
def test_a_token_that_no_header_can_carry_is_refused(make_client, token):
    with pytest.raises(normd.InvalidArgumentError, match=r"^token: ") as error:
        make_client("h:1", token=token, credentials=grpc.ssl_channel_credentials())
    assert error.value.field == "token"
    assert "secret" not in str(error.value)


def test_an_aio_client_of_a_module_serves_one_loop_after_another(fake_server):
    client = normd.aio.Client(fake_server(Normalize=lambda request, context: ANSWER).address)

    async def call():
        return (await client.normalize("m", X)).tolist()

    assert [asyncio.run(call()) for _ in range(3)] == [[1.0]] * 3
    with asyncio.Runner() if sys.version_info >= (3, 11) else pytest.skip("no Runner") as runner:
        assert runner.run(call()) == [1.0]
        with futures.ThreadPoolExecutor(1) as other:
            wrong = other.submit(asyncio.run, call())
            with pytest.raises(normd.InvalidArgumentError, match="another event loop"):
                wrong.result(60)
        runner.run(client.close())
    with pytest.raises(normd.ClosedError):
        asyncio.run(call())


def test_a_gate_lets_messages_pass_in_turn(monkeypatch):
    """The bytes that have passed never exceed the limit, even when calls are given up."""
    monkeypatch.setattr(_in_flight, "MAX_BYTES", 100)

    async def main():
        gate, random = Gate(), np.random.default_rng(7)
        now = 0
        ended = {"done": 0, "late": 0}

        async def message(nbytes, timeout):
            nonlocal now
            try:
                async with gate.passed(nbytes, timeout):
                    now += min(nbytes, 100)
                    assert now <= 100
                    try:
                        await asyncio.sleep(random.random() / 500)
                    finally:
                        now -= min(nbytes, 100)
                ended["done"] += 1
            except normd.DeadlineExceededError:
                ended["late"] += 1

        def start():
            timeout = None if random.random() < 0.5 else random.random() / 20
            return asyncio.ensure_future(message(int(random.integers(150)), timeout))

        tasks = [start() for _ in range(400)]
        for each in tasks[::7]:
            await asyncio.sleep(0.001)
            each.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        ended["cancelled"] = sum(each.cancelled() for each in tasks)
        assert all(each.cancelled() or each.exception() is None for each in tasks)
        assert min(ended.values()) > 0
        assert sum(ended.values()) == 400
        async with gate.passed(100, 1):  # All of it is free again.
            pass

    asyncio.run(main())


def test_many_calls_at_once_hold_little_memory(server):
    """200 MiB of requests, all started at once, of which 16 may be in flight."""
    script = f"""
import asyncio, resource, numpy as np, normd
from normd import _in_flight
_in_flight.MAX_BYTES = 16 << 20
x = np.ones((1, 64, 64, 64), "f4")
async def main():
    async with normd.aio.Client({server.address!r}, shared_memory="off") as client:
        async def one():
            return (await client.normalize("instance_norm_64", x)).shape
        await one()
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        await asyncio.gather(*(one() for _ in range(200)))
        print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) >> 10)
asyncio.run(main())
"""
    run = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True)
    assert int(run.stdout) < 200
