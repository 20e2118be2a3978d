"""Bad input, a server that is gone, hangs or lies, a client that is closed."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import threading

import grpc
import numpy as np
import pytest
from conftest import ANSWER, LIMIT_S, Refuses

import normd

X = np.ones((1, 64, 4), "f4")


@pytest.mark.parametrize(
    ("inputs", "field", "came"),
    [
        (X.astype("i4"), "dtype", "int32"),
        (X.astype("c8"), "dtype", "complex64"),
        (X.astype("f4").astype(object), "dtype", "object"),
        (np.array(["a"]), "dtype", None),
        (np.zeros(3, [("a", "f2")]), "dtype", None),
        (X[:, :3], "shape[1]", "3 channels in [1, 3, 4]"),
        (X[0, 0], "shape", None),
        (np.float32(1), "shape", None),
        ([1.0], "type", "list"),
        (None, "type", "NoneType"),
        ({}, "inputs", "none"),
        ({"z": X}, "inputs[0].name", '"z"'),
        ({"x": X, "y": X}, "inputs[1].name", '"y"'),
        ({"\ud800": X}, "inputs", None),
    ],
)
@pytest.mark.parametrize("method", ["normalize", "call", "normalize_stream"])
def test_bad_inputs_name_the_field(client, method, inputs, field, came):
    with pytest.raises(normd.InvalidArgumentError) as error:
        getattr(client, method)("instance_norm_64", inputs)
    assert error.value.field == field
    if came is not None:
        assert error.value.came == came
    assert error.value.wanted
    assert error.value.code is grpc.StatusCode.INVALID_ARGUMENT
    assert isinstance(error.value, ValueError)


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"timeout": 0}, "timeout"),
        ({"timeout": -1}, "timeout"),
        ({"timeout": float("nan")}, "timeout"),
        ({"timeout": "1"}, "timeout"),
        ({"timeout": [1]}, "timeout"),
        ({"queue_timeout": 0}, "queue_timeout"),
        ({"queue_timeout": float("inf")}, "queue_timeout"),
        ({"queue_timeout": "1"}, "queue_timeout"),
        ({"queue_timeout": [1]}, "queue_timeout"),
        ({"version": -1}, "version"),
        ({"version": "1"}, "version"),
        ({"version": 1 << 70}, "version"),
        ({"version": [1]}, "version"),
        ({"priority": 2}, "priority"),
        ({"priority": "high"}, "priority"),
        ({"precision": 1}, "precision"),
        ({"out": {"\ud800": None}}, "out"),
        ({"out": {7: None}}, "out"),
    ],
)
def test_bad_options_name_the_field(client, options, field):
    for call in (client.normalize, client.call, client.normalize_stream):
        with pytest.raises(normd.InvalidArgumentError) as error:
            call("instance_norm_64", X, **options)
        assert error.value.field == field


@pytest.mark.parametrize("model", [7, None, ["m"], b"m", "\ud800"])
def test_bad_models_are_named(client, model):
    large = np.ones((64, 64, 16), "f4")
    for call in (
        lambda: client.normalize(model, X),
        lambda: client.normalize(model, large),  # Large enough for a region.
        lambda: client.normalize_stream(model, X),
        lambda: client.normalize_stream(model, {"x": X, "y": X}),
        lambda: client.get_model(model),
        lambda: client.health(model or 7),
    ):
        with pytest.raises(normd.InvalidArgumentError) as error:
            call()
        assert error.value.field == "model"


@pytest.mark.parametrize(
    "seconds", [np.float16(30), np.float32(30), np.int64(30), 1e9, 9e9, 1e19, 1e300, 10**400]
)
def test_long_timeouts_are_long(make_client, server, seconds):
    for client in (make_client(server.address, timeout=seconds), make_client(server.address)):
        client.normalize("instance_norm_64", X, timeout=seconds, queue_timeout=seconds)
        client.normalize_stream("instance_norm_64", X, timeout=seconds, queue_timeout=seconds)
        client.wait_ready(timeout=seconds)


def test_unknown_model_and_version(client):
    for call in (client.normalize, client.normalize_stream):
        with pytest.raises(normd.NotFoundError, match="nope") as error:
            call("nope", X)
        assert error.value.field == "model"
        with pytest.raises(normd.NotFoundError, match="version 7"):
            call("instance_norm_64", X, version=7)
    with pytest.raises(normd.InvalidArgumentError):
        client.normalize("../etc", X)
    with pytest.raises(normd.InvalidArgumentError):
        client.normalize(7, X)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *(("target", value) for value in ("", [], ["127.0.0.1"], ["127.0.0.1:70000"])),
        # The system's resolver takes all of these for port 1.
        *(
            ("target", f"{scheme}127.0.0.1:{port}")
            for scheme in ("", "dns:", "dns:///", "ipv4:")
            for port in (65537, 131073, 2**32 + 1, 2**64 + 1, "+65537", " 65537", -65535)
        ),
        pytest.param("target", "127.0.0.1:" + "9" * 5000, id="target-digits"),
        *(("target", value) for value in (["host.invalid:1"], None, 5, [5], b"127.0.0.1:1")),
        *(("token", value) for value in ("t", 5, b"t")),
        *(("timeout", value) for value in (0, "1")),
        ("credentials", "t"),
        ("server_name", 5),
        ("retry", 3),
        ("shared_memory", None),
        ("device_memory", None),
        *(("stream_above", value) for value in (None, "1")),
    ],
)
def test_bad_constructor_arguments(make_client, field, value):
    with pytest.raises(normd.InvalidArgumentError) as error:
        make_client(**{"target": "127.0.0.1:1", field: value})
    assert error.value.field == field


def test_closed_client(make_client, server):
    client = make_client(server.address)
    client.normalize("instance_norm_64", X)
    client.close()
    client.close()
    for call in (client.normalize, client.normalize_stream):
        with pytest.raises(normd.ClosedError):
            call("instance_norm_64", X)
    with pytest.raises(normd.ClosedError):
        client.list_models()


@pytest.mark.parametrize("method", ["normalize", "normalize_stream"])
def test_close_ends_calls_in_flight(make_client, own_server, method):
    client = make_client(own_server.address)
    client.wait_ready()
    with own_server.paused():
        threading.Timer(0.3, client.close).start()
        with pytest.raises(normd.ClosedError):
            getattr(client, method)("instance_norm_64", X)


def test_no_server_is_named(make_client):
    client = make_client("127.0.0.1:1", retry=None)
    for call in (client.normalize, client.normalize_stream):
        with pytest.raises(normd.UnavailableError, match=r"127\.0\.0\.1:1"):
            call("instance_norm_64", X)
    with pytest.raises(normd.DeadlineExceededError):
        client.wait_ready(timeout=0.3)


@pytest.mark.parametrize("method", ["normalize", "normalize_stream"])
def test_server_killed_during_a_call(make_client, own_server, method):
    client = make_client(own_server.address, retry=None)
    client.wait_ready()
    with own_server.paused():
        threading.Timer(0.3, own_server.kill).start()
        with pytest.raises(normd.UnavailableError) as error:
            getattr(client, method)("instance_norm_64", X)
    assert error.value.target == own_server.address


def test_server_killed_during_a_stream(make_client, own_server, tmp_path):
    client = make_client(own_server.address)
    seen = []

    def kill(done, total):
        if done:
            own_server.kill()
            seen.append(done)

    x = np.ones((16, 64, 128, 128), "f4")
    with pytest.raises(normd.UnavailableError):
        client.normalize_stream("instance_norm_64", x, out=tmp_path / "y.npy", progress=kill)
    assert seen
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("method", ["normalize", "normalize_stream"])
def test_deadline_of_a_server_that_hangs(make_client, own_server, method):
    client = make_client(own_server.address)
    client.wait_ready()
    with own_server.paused(), pytest.raises(normd.DeadlineExceededError) as error:
        getattr(client, method)("instance_norm_64", X, timeout=0.2)
    assert isinstance(error.value, TimeoutError)
    client.normalize("instance_norm_64", X)


@pytest.fixture
def hanging(fake_server):
    """A server that hangs, and events of a call: that it has arrived, and that it has ended."""
    arrived, ended = threading.Event(), threading.Event()

    def hang(request, context):
        context.add_callback(ended.set)
        arrived.set()
        ended.wait(LIMIT_S)
        return b""

    def hang_stream(requests, context):
        yield hang(requests, context)

    return fake_server(Normalize=hang, NormalizeStream=hang_stream).address, arrived, ended


@pytest.mark.parametrize("method", ["normalize", "normalize_stream"])
def test_interrupt_ends_a_call_that_hangs_and_cancels_it(hanging, method):
    address, arrived, ended = hanging
    script = """
import signal, sys, numpy as np, normd
signal.signal(signal.SIGINT, signal.default_int_handler)  # A parent in the background ignores it.
with normd.Client(sys.argv[1]) as client:
    try:
        getattr(client, sys.argv[2])("m", np.ones(1, "f4"))
    except KeyboardInterrupt:
        print("interrupted")
"""
    process = subprocess.Popen(
        [sys.executable, "-c", script, address, method], stdout=subprocess.PIPE, text=True
    )
    assert arrived.wait(LIMIT_S)
    process.send_signal(signal.SIGINT)
    assert process.communicate(timeout=LIMIT_S)[0] == "interrupted\n"
    assert ended.wait(LIMIT_S)


@pytest.mark.parametrize("method", ["normalize", "normalize_stream"])
def test_cancelled_task_cancels_its_call(hanging, method):
    address, arrived, ended = hanging

    async def main():
        async with normd.aio.Client(address) as client:
            task = asyncio.create_task(getattr(client, method)("m", X))
            await asyncio.to_thread(arrived.wait, LIMIT_S)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        assert await asyncio.to_thread(ended.wait, LIMIT_S)

    asyncio.run(main())


UNAVAILABLE = grpc.StatusCode.UNAVAILABLE
EXHAUSTED = grpc.StatusCode.RESOURCE_EXHAUSTED


@pytest.mark.parametrize(
    ("times", "code", "pushback", "calls"),
    [
        (2, UNAVAILABLE, None, 3),
        (9, UNAVAILABLE, None, 4),
        (2, EXHAUSTED, 1, 3),
        (2, EXHAUSTED, None, 1),
        (2, EXHAUSTED, -1, 1),
        (2, EXHAUSTED, 999999, 1),
        (2, grpc.StatusCode.INTERNAL, None, 1),
        (2, grpc.StatusCode.INTERNAL, 0, 3),
        (2, grpc.StatusCode.INVALID_ARGUMENT, None, 1),
    ],
)
def test_what_is_retried(make_client, fake_server, times, code, pushback, calls):
    handler = Refuses(times, code, pushback=pushback)
    retry = normd.Retry(attempts=4, initial=0.001)
    client = make_client(fake_server(Normalize=handler).address, retry=retry)
    if calls > times:
        assert client.normalize("m", np.ones(1, "f4")).tolist() == [1.0]
    else:
        with pytest.raises(normd.Error) as error:
            client.normalize("m", np.ones(1, "f4"))
        assert error.value.code is code
        if code is EXHAUSTED:
            hint = pushback / 1e3 if pushback is not None and pushback >= 0 else None
            assert error.value.retry_after == hint
    assert handler.calls == calls


def test_loads_are_not_retried_lists_are(make_client, fake_server):
    load, models = Refuses(1, then=b""), Refuses(1, then=b"")
    client = make_client(fake_server(LoadModel=load, ListModels=models).address)
    with pytest.raises(normd.UnavailableError):
        client.load_model("m")
    assert load.calls == 1
    assert client.list_models() == []
    assert models.calls == 2


@pytest.mark.parametrize(
    "keep",
    [
        *({"attempts": value} for value in (0, "a", 1.5)),
        *({"initial": value} for value in (-1, "a", None)),
        *({"longest": value} for value in (0.01, "a", None)),
    ],
)
def test_retry_is_checked(keep):
    with pytest.raises(normd.InvalidArgumentError, match="wanted"):
        normd.Retry(**keep)
    normd.Retry(attempts=np.int64(3), initial=np.float32(0.5), longest=1)


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"\xff",
        b"\x2a\xff\xff\xff\xff\x7f",
        b"\x2a\x00",
        b"\x2a\x04\x10\x01\x1a\x00"[:4],
        b"\x2a\x06\x10\x01\x1a\x02\xff\xff",
        ANSWER[:-1],
        ANSWER + ANSWER[5:],
        b"\x0a\x02\xff\xfe" + ANSWER,
        b"\x07",
        b"\x00\x00",
    ],
)
def test_response_that_breaks_the_protocol(make_client, fake_server, answer):
    client = make_client(fake_server(Normalize=lambda request, context: answer).address)
    with pytest.raises(normd.ProtocolError):
        client.normalize("m", np.ones(1, "f4"))


@pytest.mark.parametrize("answer", [b"\xff", b"\x0a\x02\x0a\x05", b"\x0a\x04\x0a\x02\xff\xfe"])
def test_small_response_that_breaks_the_protocol(make_client, fake_server, answer):
    def handler(request, context):
        return answer

    client = make_client(fake_server(ListModels=handler, GetModel=handler).address)
    for call in (client.list_models, lambda: client.get_model("m")):
        with pytest.raises(normd.ProtocolError):
            call()


HEADER = b"\x0a\x0f\x1a\x05\x10\x01\x1a\x01\x02\x20\x10\x28\x80\x01\x0a\x01m"
CHUNK = b"\x12\x08\x00\x00\x80\x3f\x00\x00\x80\x3f"
TRAILER = b"\x1a\x00"


@pytest.mark.parametrize(
    ("answers", "whole"),
    [
        ([HEADER, CHUNK, TRAILER], True),
        ([HEADER, b"", CHUNK[:1] + b"\x00", CHUNK, TRAILER], True),
        ([], False),
        ([HEADER], False),
        ([HEADER, CHUNK], False),
        ([HEADER, TRAILER], False),
        ([CHUNK, HEADER, TRAILER], False),
        ([HEADER, HEADER, CHUNK, TRAILER], False),
        ([HEADER, CHUNK, CHUNK, TRAILER], False),
        ([HEADER, CHUNK, TRAILER, TRAILER], False),
        ([HEADER.replace(b"\x28\x80\x01", b"\x28\x00\x10\x01"[:2] + b"\x00"), CHUNK], False),
        ([b"\xff"], False),
    ],
)
def test_stream_that_breaks_the_protocol(make_client, fake_server, answers, whole):
    def answer(requests, context):
        yield from answers

    client = make_client(fake_server(NormalizeStream=answer).address)
    if whole:
        got = client.normalize_stream("m", np.ones(2, "f4")).output
        assert got.tolist() == [1.0, 1.0]
    else:
        with pytest.raises(normd.ProtocolError):
            client.normalize_stream("m", np.ones(2, "f4"))


def test_stream_is_retried_until_the_header_and_not_after(make_client, fake_server):
    calls = []

    def answer(requests, context):
        calls.append(next(requests))
        if len(calls) == 1:
            context.abort(UNAVAILABLE, "draining")
        if len(calls) == 2:
            yield HEADER
            context.abort(UNAVAILABLE, "gone")
        yield from (HEADER, CHUNK, TRAILER)

    client = make_client(fake_server(NormalizeStream=answer).address)
    with pytest.raises(normd.UnavailableError, match="gone"):
        client.normalize_stream("m", np.ones(2, "f4"))
    assert len(calls) == 2
    assert client.normalize_stream("m", np.ones(2, "f4")).output.tolist() == [1.0, 1.0]


@pytest.mark.parametrize(
    ("message", "parts"),
    [
        ("shape[1]: 3 channels in [1, 3], wanted 64", ("shape[1]", "3 channels in [1, 3]", "64")),
        ('input "y": dtype: float16, wanted float32', ('input "y": dtype', "float16", "float32")),
        ("part: wanted a chunk after the header", ("part", None, "a chunk after the header")),
        ("model: nope is not loaded", ("model", "nope is not loaded", None)),
        ("linear_norm.eps: -1, wanted 0 or more", ("linear_norm.eps", "-1", "0 or more")),
        ("failed to connect to all addresses; last error: UNKNOWN", (None, None, None)),
        ("", (None, None, None)),
    ],
)
def test_messages_are_taken_apart(message, parts):
    error = normd.Error(message)
    assert (error.field, error.came, error.wanted) == parts
    assert str(error) == message
