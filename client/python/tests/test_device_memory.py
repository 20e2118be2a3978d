"""CUDA tensors that stay on their device, over a fake one."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from conftest import REPOSITORY, Blocking, Server
from device_cases import MODEL, SHAPE, close, same, values
from fake_cuda import DeviceServer, FakeStream

import normd
from normd import _cuda


@pytest.fixture
def near(make_client, device_server):
    """A client that leaves tensors on the device, and fails where it cannot."""
    return make_client(device_server.address, device_memory="require")


@pytest.fixture
def far(make_client, server):
    return make_client(server.address, device_memory="off")


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


def test_small_tensors_are_sent(cuda, device_server, make_client, far):
    x = values((1, 64, 4))
    client = make_client(device_server.address)
    assert same(client.normalize(MODEL, cuda.tensor(x)), far.normalize(MODEL, x))
    assert device_server.registered == 0


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


def test_a_forked_child_unregisters_nothing(device_server, near, monkeypatch):
    region = near.share(1 << 16, device=0)
    with monkeypatch.context() as child:
        child.setattr(os, "getpid", lambda: -1)
        region.close()
        assert region.name in device_server.regions
        close(near)
        assert region.name in device_server.regions
    device_server.restart()  # Otherwise its regions outlive the test.


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
