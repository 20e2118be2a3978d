"""CUDA tensors that stay on their device: over a fake device, and over a real one where it is."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import gc
import os
import random
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from conftest import REPOSITORY, Blocking, Server
from fake_cuda import DeviceServer, FakeCuda, FakeStream, Refusal

import normd
from normd import _cuda, _device

SHAPE = (2, 64, 16, 16)  # 128 KiB of float32.
MODEL = "instance_norm_64"


def values(shape=SHAPE, dtype=torch.float32, seed=1) -> Any:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator).to(dtype)


def same(a: Any, b: Any) -> bool:
    """Whether they have the same type, shape and bits."""
    if a.dtype != b.dtype or a.shape != b.shape:
        return False
    bits = [each.detach().cpu().contiguous().view(torch.uint8) for each in (a, b)]
    return bool(torch.equal(*bits))


@pytest.fixture
def cuda(monkeypatch) -> FakeCuda:
    fake = FakeCuda()
    monkeypatch.setattr(_cuda, "CUDA", fake)
    return fake


@pytest.fixture
def make_device_server(server, cuda):
    made: list[DeviceServer] = []

    def make(**options: Any) -> DeviceServer:
        made.append(DeviceServer(server.address, cuda, **options))
        return made[-1]

    yield make
    gc.collect()
    for each in made:
        each.close()
        assert each.breaches == []
    assert cuda.fake_driver.breaches == []


@pytest.fixture
def device_server(make_device_server):
    return make_device_server()


@pytest.fixture
def near(make_client, device_server):
    """A client that leaves tensors on the device, and fails where it cannot."""
    return make_client(device_server.address, device_memory="require")


@pytest.fixture
def far(make_client, server):
    return make_client(server.address, device_memory="off")


def assert_nothing_lives(cuda: FakeCuda) -> None:
    """A thread may hold the last error, and with it a frame, for a while."""
    deadline = time.monotonic() + 30
    while cuda.fake_driver.live and time.monotonic() < deadline:
        gc.collect()
        threading.Event().wait(0.01)
    assert cuda.fake_driver.live == 0


def close(client: Any) -> None:
    client.end() if isinstance(client, Blocking) else client.close()


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
@pytest.mark.parametrize(
    ("model", "shape"),
    [
        (MODEL, (4, 64, 33, 31)),
        ("rms_norm_4096", (64, 4096)),
        ("layer_norm_1024", (99, 1024)),
        (MODEL, (1, 64, 3)),
    ],
)
def test_the_bits_are_those_of_messages(cuda, device_server, near, far, model, shape, dtype):
    x = values(shape, getattr(torch, dtype))
    expected = far.normalize(model, x)
    there = cuda.tensor(x)
    assert same(near.normalize(model, there), expected)
    assert len(device_server.inputs) == len(device_server.outputs) == 1
    out = cuda.tensor(torch.zeros_like(x))
    assert near.normalize(model, there, out=out) is out
    assert same(out, expected)
    # Strided, from the middle of a block, and in its own place.
    wide = torch.zeros((*shape[:-1], shape[-1] + 3), dtype=x.dtype)
    wide[..., 3:] = x
    assert same(near.normalize(model, cuda.tensor(wide)[..., 3:]), expected)
    assert near.normalize(model, there, out=there) is there
    assert same(there, expected)
    assert len(device_server.inputs) == 4
    assert device_server.registered == 1, "one region serves calls that follow each other"


def test_a_callers_region_is_used_in_place(cuda, device_server, near, far):
    x = values()
    expected = far.normalize(MODEL, x)
    with near.share(3 * x.nbytes, device="cuda:0") as region:
        assert region.nbytes == 2 << 20, "whole blocks"
        x_there, y_there = region.tensor(SHAPE), region.tensor(SHAPE)
        x_there.copy_(x)
        assert near.normalize(MODEL, x_there, out=y_there) is y_there
        assert same(y_there, expected)
        assert device_server.inputs == [(region.name, 0)]
        assert device_server.outputs == [(region.name, x.nbytes)]
        assert device_server.registered == 1, "nothing but the region"
        # One there, the other elsewhere on the device.
        assert same(near.normalize(MODEL, x_there), expected)
        y_there.zero_()
        near.normalize(MODEL, cuda.tensor(x), out=y_there)
        assert same(y_there, expected)
        assert device_server.outputs[-1] == (region.name, x.nbytes)
        # A part of a tensor, at an offset of its own; in its own place.
        assert same(near.normalize(MODEL, x_there[1:]), expected[1:])
        assert device_server.inputs[-1] == (region.name, x.nbytes // 2)
        assert near.normalize(MODEL, x_there, out=x_there) is x_there
        assert same(x_there, expected)
        name = region.name
    assert name not in device_server.regions
    # Its tensors are tensors.
    assert region.closed
    x_there.copy_(x)
    assert same(near.normalize(MODEL, x_there, out=y_there), expected)
    assert name not in dict(device_server.inputs[-1:])


def test_several_inputs_and_outputs(cuda, device_server, near, far):
    x, residual = values((50, 4096)), values((50, 4096), seed=2)
    inputs = {"x": x, "residual": residual}
    expected = far.call("add_rms_norm_4096", inputs).outputs
    for given in (
        {"x": cuda.tensor(x), "residual": cuda.tensor(residual)},
        {"x": cuda.tensor(x), "residual": residual.numpy()},  # In the message.
        {"x": cuda.tensor(x), "residual": cuda.tensor(residual, device=1)},
    ):
        got = near.call("add_rms_norm_4096", given).outputs
        assert list(got) == list(expected)
        assert all(same(got[name], expected[name]) for name in got)
    # Results are of the first input's kind.
    arrays = {"x": x.numpy(), "residual": cuda.tensor(residual)}
    for name, each in near.call("add_rms_norm_4096", arrays).outputs.items():
        assert isinstance(each, np.ndarray)
        assert same(torch.from_numpy(each), expected[name])
    there = {name: cuda.tensor(each) for name, each in inputs.items()}
    into = {name: np.zeros_like(each.numpy()) for name, each in expected.items()}
    near.call("add_rms_norm_4096", there, out=into)
    assert all(same(torch.from_numpy(into[name]), each) for name, each in expected.items())
    out = {"rstd": None, "residual_out": cuda.tensor(torch.zeros_like(x))}
    wanted = far.call("add_rms_norm_4096", inputs, out={"rstd": None, "residual_out": None})
    some = near.call("add_rms_norm_4096", there, out=out).outputs
    assert set(some) == set(out)
    assert some["residual_out"] is out["residual_out"]
    assert all(same(some[name], each) for name, each in wanted.outputs.items())


def test_indexes_go_in_the_message(cuda, binaries, make_client, tmp_path):
    model = shutil.copytree(REPOSITORY / "style_bank_64_32", tmp_path / "m")
    config = model / "config.textproto"
    config.write_text(config.read_text().replace("styles: 32", "styles: 32 by_index: true"))
    with (
        contextlib.closing(Server(binaries, f"--model_repository={tmp_path}")) as server,
        contextlib.closing(DeviceServer(server.address, cuda)) as device_server,
    ):
        near = make_client(device_server.address, device_memory="require")
        x, style = values((4, 64, 16, 16)), torch.tensor([3, 0, 31, 3])
        expected = make_client(server.address).normalize("m", {"x": x, "style_index": style})
        there = {"x": cuda.tensor(x), "style_index": cuda.tensor(style)}
        assert same(near.normalize("m", there), expected)
        assert len(device_server.inputs) == 1
        there["style_index"] = cuda.tensor(style + 1)
        with pytest.raises(normd.InvalidArgumentError, match=r"32.*wanted"):
            near.normalize("m", there)
        assert device_server.breaches == []


def test_in_inference_mode_and_out_of_it(cuda, near, far):
    x = values()
    expected = far.normalize(MODEL, x)
    with torch.inference_mode():
        region = near.share(2 * x.nbytes, device=0)
        made = [region.tensor(SHAPE)]
        assert same(near.normalize(MODEL, cuda.tensor(x)), expected)
    made.append(region.tensor(SHAPE))
    assert same(near.normalize(MODEL, cuda.tensor(x)), expected)
    for there in made:
        there.copy_(x)
        near.normalize(MODEL, there, out=there)
        assert same(there, expected)


def test_empty_tensors(cuda, device_server, near, far):
    x = values((0, 64, 5))
    assert same(near.normalize(MODEL, cuda.tensor(x)), far.normalize(MODEL, x))
    assert device_server.inputs == []


def test_the_drivers_calls(tmp_path):
    """Against a driver of the host's memory, by its real interface."""
    if shutil.which("cc") is None:
        pytest.skip("no C compiler")
    source, library = Path(__file__).with_name("fake_driver.c"), tmp_path / "libdriver.so"
    subprocess.run(["cc", "-w", "-shared", "-fPIC", "-o", library, source], check=True)
    fake = ctypes.CDLL(str(library))
    fake.last_freed.restype = ctypes.c_uint64
    driver = _cuda.Driver(str(library))
    nbytes = 1 << 20
    address, handle = driver.allocate(1, nbytes)
    assert handle == bytes(56) + address.to_bytes(8, sys.byteorder)
    assert ctypes.string_at(address, nbytes) == bytes(nbytes)
    memory = _cuda.DeviceMemory(driver, 1, nbytes)
    interface = memory.__cuda_array_interface__
    assert interface["data"] == (memory.address, False)
    assert interface["shape"] == (nbytes,)
    at = memory.address
    del memory
    gc.collect()
    assert fake.last_freed() == at
    driver.free(1, address)
    assert fake.last_freed() == address
    assert (fake.depth(), fake.pushed_in_all()) == (0, 4)
    fake.set_fail(801)
    with pytest.raises(normd.UnavailableError, match="CUDA: cuIpcGetMemHandle: NOT_SUPPORTED"):
        driver.allocate(1, nbytes)
    assert fake.freed_in_all() == 3, "what cannot be shared is freed"
    assert fake.depth() == 0
    with pytest.raises(normd.UnavailableError, match="cuDeviceGet: OTHER"):
        driver.allocate(2, nbytes)
    with pytest.raises(normd.UnavailableError, match=r"CUDA: .*no_such"):
        _cuda.Driver("libno_such.so")


def test_quantized_outputs(cuda, near, far):
    x = values((32, 4096))
    expected = far.call("rms_norm_4096_float8", x).outputs
    got = near.call("rms_norm_4096_float8", cuda.tensor(x)).outputs
    assert list(got) == list(expected)
    assert all(same(got[name], expected[name]) for name in got)


def test_larger_tensors_than_messages_take_are_no_streams(cuda, device_server, make_client, far):
    client = make_client(device_server.address, stream_above=1 << 16)
    x = values()
    assert same(client.normalize(MODEL, cuda.tensor(x)), far.normalize(MODEL, x))
    assert client.call(MODEL, cuda.tensor(x)).batch is not None, "a stream has none"
    assert len(device_server.inputs) == 2


def test_streams_of_chunks_wait_for_streams_of_work(cuda, device_server, make_client, far):
    """Where another thread than the caller's reads the tensor."""
    client = make_client(device_server.address)
    x, out = cuda.tensor(values()), cuda.tensor(torch.zeros(SHAPE))
    with cuda.on(cuda.current):  # What the caller does before.
        pass
    assert client.normalize_stream(MODEL, x, out=out).output is out
    assert same(out, far.normalize(MODEL, values()))
    if isinstance(client, Blocking):
        assert cuda.current.done == cuda.current.given


def test_requests_wait_for_streams(cuda, device_server, near, far):
    """The server's check of order is what fails."""
    x = values()
    expected = far.normalize(MODEL, x)
    there = cuda.tensor(x)
    cuda.streams.append(FakeStream())
    for at in (0, 1, 1, 0, 1):
        cuda.current = cuda.streams[at]
        assert same(near.normalize(MODEL, there), expected)
    assert device_server.registered == 1
    with near.share(2 * x.nbytes, device=0) as region:
        for at in (0, 1):
            cuda.current = cuda.streams[at]
            with cuda.on(cuda.current):  # What the caller does before.
                a, b = region.tensor(SHAPE, offset=0), region.tensor(SHAPE, offset=x.nbytes)
                a.copy_(x)
            for stream in cuda.streams:  # What is not this stream's.
                if stream is not cuda.current:
                    stream.done = stream.given
            near.normalize(MODEL, a, out=b)
            assert same(b, expected)


def test_memory_that_the_server_counts_otherwise(cuda, make_device_server, make_client, far):
    server = make_device_server(shift=1, devices=3)
    client = make_client(server.address, device_memory="require")
    x = values()
    for device in (1, 0, 1):
        y = client.normalize(MODEL, cuda.tensor(x, device))
        assert same(y, far.normalize(MODEL, x))
    assert server.registered == 2
    # It computes on devices 0 to 2, of which the client's are -1 to 1.
    with pytest.raises(normd.InvalidArgumentError, match="device_id: 2, wanted"):
        client.share(1, device=2)


@pytest.mark.parametrize(
    ("break_it", "kind", "match"),
    [
        (lambda server, cuda: setattr(server, "lanes", ["cpu:0"]), "Unimplemented", "lanes: cpu:0"),
        (
            lambda server, cuda: server.refuse.update(
                CudaSharedMemoryRegister=Refusal("UNIMPLEMENTED", "switched off on this server")
            ),
            "Unimplemented",
            "switched off",
        ),
        (
            lambda server, cuda: server.refuse.update(
                CudaSharedMemoryRegister=Refusal("PERMISSION_DENIED", "no admin")
            ),
            "PermissionDenied",
            "no admin",
        ),
        (
            lambda server, cuda: server.refuse.update(
                CudaSharedMemoryRegister=Refusal("RESOURCE_EXHAUSTED", "enough regions")
            ),
            "ResourceExhausted",
            "enough",
        ),
        (
            lambda server, cuda: server.refuse.update(
                CudaSharedMemoryRegister=Refusal("INVALID_ARGUMENT", "raw_handle: of nothing")
            ),
            "InvalidArgument",
            "raw_handle",
        ),
        (
            lambda server, cuda: setattr(cuda.fake_driver, "fails", "CUDA_ERROR_OUT_OF_MEMORY"),
            "Unavailable",
            "OUT_OF_MEMORY",
        ),
    ],
)
def test_where_it_cannot_be_the_result_is_the_same(
    cuda, make_device_server, make_client, far, break_it, kind, match
):
    server = make_device_server()
    break_it(server, cuda)
    x = values()
    expected = far.normalize(MODEL, x)
    out = cuda.tensor(torch.zeros_like(x))
    for options in ({}, {"stream_above": 1 << 16}):
        client = make_client(server.address, **options)
        for _ in range(3):
            assert same(client.normalize(MODEL, cuda.tensor(x)), expected)
            assert client.normalize(MODEL, cuda.tensor(x), out=out.zero_()) is out
            assert same(out, expected)
        strict = make_client(server.address, device_memory="require", retry=None, **options)
        for call in (
            lambda strict=strict: strict.normalize(MODEL, cuda.tensor(x)),
            lambda strict=strict: strict.share(1, device="cuda:0"),
            lambda client=client: client.share(1, device="cuda:0"),
        ):
            with pytest.raises(getattr(normd, f"{kind}Error"), match=match):
                call()
    assert server.inputs == []
    assert server.regions == {}
    assert_nothing_lives(cuda)


def test_off_and_elsewhere(cuda, device_server, make_client, far):
    x = values()
    expected = far.normalize(MODEL, x)
    off = make_client(device_server.address, device_memory="off")
    assert same(off.normalize(MODEL, cuda.tensor(x)), expected)
    with pytest.raises(normd.UnimplementedError, match="off"):
        off.share(1, device=0)
    # A list of addresses may be any number of servers.
    addresses = [device_server.address] * 2
    several = make_client(addresses)
    assert same(several.normalize(MODEL, cuda.tensor(x)), expected)
    strict = make_client(addresses, device_memory="require")
    for call in (
        lambda: strict.share(1, device=0),
        lambda: strict.normalize(MODEL, cuda.tensor(x)),
    ):
        with pytest.raises(normd.UnimplementedError, match="wanted one server on this machine"):
            call()
    assert device_server.inputs == []
    with pytest.raises(normd.InvalidArgumentError, match='device_memory: "on", wanted'):
        make_client(device_server.address, device_memory="on")
    # What is of the host goes as ever.
    assert same(strict.normalize(MODEL, x), expected)


def test_small_tensors_are_sent(cuda, device_server, make_client, far):
    x = values((1, 64, 4))
    client = make_client(device_server.address)
    assert same(client.normalize(MODEL, cuda.tensor(x)), far.normalize(MODEL, x))
    assert device_server.registered == 0


def test_a_client_holds_so_much(cuda, device_server, make_client, far, monkeypatch):
    monkeypatch.setattr(_device, "_MAX_BYTES", 4 << 20)
    client = make_client(device_server.address)
    for shape in ((2, 64, 16, 16), (8, 64, 32, 32), (8, 64, 33, 32), (2, 64, 16, 16)):
        x = values(shape)
        assert same(client.normalize(MODEL, cuda.tensor(x)), far.normalize(MODEL, x))
        held = sum(each.nbytes for each in device_server.regions.values())
        assert held <= 4 << 20
    assert [at for _, at in device_server.inputs] == [0, 0, 0], "the third is too large"
    strict = make_client(device_server.address, device_memory="require")
    with pytest.raises(normd.ResourceExhaustedError, match="wanted at most 4194304"):
        strict.normalize(MODEL, cuda.tensor(values((8, 64, 33, 32))))


def test_a_wrong_call_has_the_error_of_a_message(cuda, near, make_client, device_server, far):
    auto = make_client(device_server.address)
    for model, x in (
        (MODEL, values((2, 63, 16, 16))),
        ("no_such_model", values()),
        (MODEL, values((64,))),
    ):
        with pytest.raises(normd.Error) as expected:
            far.normalize(model, x)
        with pytest.raises(normd.Error) as got:
            auto.normalize(model, cuda.tensor(x))
        assert (type(got.value), got.value.message) == (
            type(expected.value),
            expected.value.message,
        )
        with pytest.raises(normd.Error):
            near.normalize(model, cuda.tensor(x))
    for out, field in (
        (torch.zeros(3), "out.shape"),
        (torch.zeros(SHAPE, dtype=torch.float16), "out.dtype"),
        (torch.zeros(SHAPE, dtype=torch.int16), "out.dtype"),
        (cuda.tensor(torch.zeros(3)), "out.shape"),
        (cuda.tensor(torch.zeros(SHAPE, dtype=torch.float16)), "out.dtype"),
        (cuda.tensor(torch.zeros((*SHAPE[:-1], 32)))[..., ::2], "out"),
        ([], "out"),
    ):
        with pytest.raises(normd.InvalidArgumentError) as error:
            near.normalize(MODEL, cuda.tensor(values()), out=out)
        assert error.value.field == field
    x = cuda.tensor(values())
    x.requires_grad_()
    with pytest.raises(normd.InvalidArgumentError, match="requires_grad"):
        near.normalize(MODEL, x)
    assert same(near.normalize(MODEL, cuda.tensor(values())), far.normalize(MODEL, values()))


def test_share_says_what_is_wrong(near):
    for nbytes in (0, -1, "1"):
        with pytest.raises(normd.InvalidArgumentError, match=r"nbytes: .*, wanted an int"):
            near.share(nbytes, device=0)
    with pytest.raises(normd.InvalidArgumentError, match="device: 'cpu', wanted a CUDA device"):
        near.share(1, device="cpu")
    region = near.share(1 << 16, device=0)
    for arguments, field in ((((1 << 19) + 1,), "shape"), ((-1,), "shape")):
        with pytest.raises(normd.InvalidArgumentError, match=field):
            region.tensor(*arguments)
    with pytest.raises(normd.InvalidArgumentError, match=r"dtype: torch\.complex64"):
        region.tensor(3, torch.complex64)
    for offset in (-4, 2, 2 << 20):
        with pytest.raises(normd.InvalidArgumentError, match=r"offset|shape"):
            region.tensor(1, offset=offset)
    assert region.tensor((0, 3)).shape == (0, 3)


def test_a_server_that_was_started_anew(cuda, device_server, make_client, far):
    x = values()
    expected = far.normalize(MODEL, x)
    client = make_client(device_server.address)
    region = client.share(2 * x.nbytes, device=0)
    there, out = region.tensor(SHAPE), region.tensor(SHAPE)
    there.copy_(x)
    assert same(client.normalize(MODEL, cuda.tensor(x)), expected)
    device_server.restart()
    assert same(client.normalize(MODEL, cuda.tensor(x)), expected)
    assert same(client.normalize(MODEL, there, out=out.zero_()), expected)
    strict = make_client(device_server.address, device_memory="require")
    before = len(device_server.inputs)
    large = values((16, 64, 64, 32))
    for each in (x, large):
        strict.normalize(MODEL, cuda.tensor(each))
    device_server.restart()
    with pytest.raises(normd.NotFoundError, match="shared_memory"):
        strict.normalize(MODEL, cuda.tensor(x))
    for each in (large, x):  # In memory of its own anew, also where others were.
        assert same(strict.normalize(MODEL, cuda.tensor(each)), far.normalize(MODEL, each))
    assert len(device_server.inputs) == before + 4


def test_a_full_server_is_asked_again(cuda, device_server, make_client, far, monkeypatch):
    x = values()
    client = make_client(device_server.address, device_memory="require")
    compute = device_server._compute
    tries = []

    def full_at_first(*arguments: Any) -> bytes:
        tries.append(1)
        if len(tries) < 3:
            arguments[-1].set_trailing_metadata((("grpc-retry-pushback-ms", "1"),))
            raise Refusal("RESOURCE_EXHAUSTED", "full")
        return bytes(compute(*arguments))

    monkeypatch.setattr(device_server, "_compute", full_at_first)
    assert same(client.normalize(MODEL, cuda.tensor(x)), far.normalize(MODEL, x))
    assert len(tries) == 3
    assert device_server.registered == 1


def test_memory_of_a_call_that_was_given_up_is_nobody_elses(cuda, device_server, make_client, far):
    device_server.checks_order = False
    client = make_client(device_server.address, device_memory="require")
    inputs = [values(seed=seed) for seed in range(2)]
    expected = [far.normalize(MODEL, x) for x in inputs]
    client.normalize(MODEL, cuda.tensor(inputs[0]))
    device_server.hold.clear()
    with pytest.raises(normd.DeadlineExceededError):
        client.normalize(MODEL, cuda.tensor(inputs[0]), timeout=0.2)
    assert device_server.holding.acquire(timeout=30)
    (name,) = device_server.regions
    given_up = device_server.regions[name]
    # The first is still computed, and nobody may have its memory.
    done: list[Any] = []
    thread = threading.Thread(
        target=lambda: done.append(client.normalize(MODEL, cuda.tensor(inputs[1])))
    )
    thread.start()
    assert device_server.holding.acquire(timeout=30)
    assert device_server.holding.acquire(timeout=30)
    assert given_up.in_use == 1
    assert not given_up.memory.freed
    assert len(device_server.regions) == 2
    device_server.hold.set()
    thread.join(30)
    assert same(done[0], expected[1])
    while given_up.in_use:
        device_server.hold.wait(0.01)
    # The next region that is made sweeps it up.
    client.share(1, device=0)
    assert name not in device_server.regions
    gc.collect()
    assert given_up.memory.freed


def test_a_call_that_is_cancelled_while_memory_is_made(cuda, device_server):
    register, entered, gate = device_server._register, threading.Event(), threading.Event()

    def slowly(*arguments: Any) -> bytes:
        entered.set()
        gate.wait(30)
        return bytes(register(*arguments))

    device_server.handlers["CudaSharedMemoryRegister"] = slowly
    client = Blocking(device_server.address, device_memory="require")
    try:
        call = client.client.normalize(MODEL, cuda.tensor(values()))
        future = asyncio.run_coroutine_threadsafe(call, client._loop)
        assert entered.wait(30)
        future.cancel()
        gate.set()
        region = client.share(1, device=0)
        client.normalize(MODEL, cuda.tensor(values()))
        assert device_server.registered == 2, "the call's memory is the next one's"
        assert region.name in device_server.regions
    finally:
        close(client)
    assert device_server.regions == {}


def test_close_leaves_nothing(cuda, device_server, make_client):
    client = make_client(device_server.address, device_memory="require")
    region = client.share(1 << 16, device=0)
    tensor = region.tensor(3)
    client.normalize(MODEL, cuda.tensor(values()))
    dropped = client.share(1 << 16, device=1)
    assert len(device_server.regions) == 3
    del dropped
    close(client)
    assert device_server.regions == {}
    assert region.closed
    assert cuda.fake_driver.live >= 1, "a tensor is there"
    assert tensor.tolist() == [0, 0, 0]
    del tensor, region, client
    gc.collect()


def test_a_client_that_is_forgotten_leaves_nothing(cuda, device_server):
    client = normd.Client(device_server.address, device_memory="require")
    client.normalize(MODEL, cuda.tensor(values()))
    assert len(device_server.regions) == 1
    assert client._devices._end.atexit, "nor at the end of the process"
    del client
    gc.collect()
    assert device_server.regions == {}
    assert_nothing_lives(cuda)


def test_a_process_that_ends_leaves_nothing(cuda, device_server):
    """Without a close, with a client that lives to the end."""
    handle = cuda.fake_driver.allocate(0, 2 << 20).handle
    program = f"""
import types, normd
client = normd.Client("{device_server.address}")
handle = bytes.fromhex("{handle.hex()}")
memory = types.SimpleNamespace(handle=handle, nbytes=2 << 20, device=0)
print(client._devices._register(memory))
"""
    ran = subprocess.run(
        [sys.executable, "-c", program], check=True, timeout=60, capture_output=True, text=True
    )
    assert ran.stdout.startswith("cuda-")
    assert device_server.registered == 1
    assert device_server.regions == {}


def test_a_server_that_hangs_holds_nobody_up(cuda, device_server, make_client):
    client = make_client(device_server.address, device_memory="require")
    client.normalize(MODEL, cuda.tensor(values()))
    (region,) = device_server.regions.values()
    device_server.refuse["CudaSharedMemoryUnregister"] = Refusal("UNAVAILABLE", "gone")
    close(client)
    gc.collect()
    assert not region.memory.freed, "the server may write to it"


@pytest.mark.parametrize("seed", range(4))
def test_whatever_comes_in_whatever_order(cuda, device_server, make_client, far, seed):
    """Random calls, regions and streams of several threads: bits, and the server's checks."""
    device_server.checks_order = False
    client = make_client(device_server.address, device_memory="require")
    shapes = [(1, 64, 16, 16), (2, 64, 33, 7), (3, 64, 65), (16, 64, 64, 16)]
    inputs = [values(shape, seed=at) for at, shape in enumerate(shapes)]
    expected = [far.normalize(MODEL, x) for x in inputs]
    failures: list[str] = []

    def run(number: int) -> None:
        pick = random.Random(100 * seed + number)
        region = None
        for _ in range(25):
            at = pick.randrange(len(shapes))
            x, y = inputs[at], expected[at]
            if region is None or pick.random() < 0.1:
                if region is not None and pick.random() < 0.5:
                    region.close()
                region = client.share(2 * max(each.nbytes for each in inputs), device=number % 2)
            a = cuda.tensor(x, number % 2)
            if pick.random() < 0.5:
                a = region.tensor(x.shape, offset=0).copy_(x)
            out = pick.choice([None, "there", "own", "same"])
            b = {
                None: None,
                "there": region.tensor(x.shape, offset=x.nbytes),
                "own": cuda.tensor(torch.empty_like(x), number % 2),
                "same": a,
            }[out]
            if not same(client.normalize(MODEL, a, out=b), y):
                failures.append(f"seed {seed}, thread {number}: {list(x.shape)}, out {out}")

    threads = [threading.Thread(target=run, args=(number,)) for number in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert failures == []
    assert len(device_server.inputs) == 100
    close(client)
    assert device_server.regions == {}


class DeviceNormd(Server):
    """A normd on the GPU."""

    def __init__(self, binaries: Any) -> None:
        super().__init__(binaries, "--device=cuda", "--shared_memory_cuda")


needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")


@pytest.fixture(scope="module")
def on_gpu(binaries):
    with contextlib.closing(DeviceNormd(binaries)) as running:
        yield running


def registered(client: Any) -> int:
    return sum(each.kind == "DEVICE" for each in client.list_shared_memory())


@needs_gpu
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
@pytest.mark.parametrize("shape", [(4, 64, 33, 31), (1, 64, 3), (2, 64, 512, 512)])
def test_on_a_gpu_the_bits_are_those_of_messages(on_gpu, make_client, shape, dtype):
    near = make_client(on_gpu.address, device_memory="require")
    far = make_client(on_gpu.address, device_memory="off")
    x = values(shape, getattr(torch, dtype)).cuda()
    expected = far.normalize(MODEL, x)
    y = near.normalize(MODEL, x)
    assert y.device == x.device
    assert same(y, expected)
    assert registered(near) == 1
    with near.share(2 * x.nbytes + 8192, device=x.device) as region:
        a, b = region.tensor(shape, x.dtype), region.tensor(shape, x.dtype)
        a.copy_(x)
        assert near.normalize(MODEL, a, out=b) is b
        assert same(b, expected)
        assert near.normalize(MODEL, a, out=a) is a
        assert same(a, expected)
    strided = x.transpose(-1, -2).contiguous().transpose(-1, -2)
    assert same(near.normalize(MODEL, strided), expected)
    close(near)
    assert registered(far) == 0


@needs_gpu
def test_on_a_gpu_calls_wait_for_their_stream(on_gpu):
    """Long work before each call, on streams in turn: what is sent early has other bits."""
    x = values((8, 64, 128, 128)).cuda()
    with contextlib.closing(normd.Client(on_gpu.address, device_memory="require")) as client:
        expected = client.normalize(MODEL, x)
        streams = [torch.cuda.Stream() for _ in range(3)]
        torch.cuda.synchronize()
        for at in range(60):
            with torch.cuda.stream(streams[at % 3]):
                late = torch.zeros_like(x)
                torch.cuda._sleep(20_000_000)
                late.copy_(x)
                assert torch.equal(client.normalize(MODEL, late), expected)
        assert registered(client) == 1


@needs_gpu
def test_on_a_gpu_nothing_is_left(on_gpu, make_client):
    far = make_client(on_gpu.address, device_memory="off")
    x = values((8, 64, 128, 128)).cuda()
    free = []
    for _ in range(30):
        with contextlib.closing(normd.Client(on_gpu.address, device_memory="require")) as client:
            client.normalize(MODEL, x)
            client.share(64 << 20, device="cuda").tensor(16 << 20).fill_(1)
        gc.collect()
        free.append(torch.cuda.mem_get_info()[0])
    assert registered(far) == 0
    assert free[-1] >= free[1] - (16 << 20)


@needs_gpu
def test_on_a_gpu_tensors_in_expandable_segments_are_taken(on_gpu):
    """Which CUDA cannot share, and which are copied as others are."""
    program = f"""
import torch, normd
x = torch.randn(2, 64, 256, 256, device="cuda")
with normd.Client("{on_gpu.address}", device_memory="require") as near:
    with normd.Client("{on_gpu.address}", device_memory="off") as far:
        assert torch.equal(near.normalize("{MODEL}", x), far.normalize("{MODEL}", x))
client = normd.Client("{on_gpu.address}", device_memory="require")
client.normalize("{MODEL}", x)  # And ends without a close.
"""
    environment = {**os.environ, "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}
    subprocess.run([sys.executable, "-c", program], check=True, env=environment, timeout=120)
    with contextlib.closing(normd.Client(on_gpu.address)) as client:
        assert registered(client) == 0


@needs_gpu
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="no second GPU")
def test_on_several_gpus(on_gpu, make_client):
    near = make_client(on_gpu.address, device_memory="require")
    far = make_client(on_gpu.address, device_memory="off")
    x, residual = values((50, 4096)), values((50, 4096), seed=2)
    expected = far.call("add_rms_norm_4096", {"x": x, "residual": residual}).outputs
    for first, second in ((0, 1), (1, 0), (1, 1)):
        given = {"x": x.to(f"cuda:{first}"), "residual": residual.to(f"cuda:{second}")}
        got = near.call("add_rms_norm_4096", given).outputs
        for name, value in expected.items():
            assert got[name].device.index == first
            assert same(got[name], value)
