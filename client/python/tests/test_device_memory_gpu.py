"""CUDA tensors that stay on their device, on a real one."""

from __future__ import annotations

import contextlib
import gc
import os
import subprocess
import sys
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from conftest import Server
from device_cases import MODEL, close, same, values

import normd


class DeviceNormd(Server):
    """A normd on the GPU."""

    def __init__(self, binaries: Any, *flags: str) -> None:
        super().__init__(binaries, "--device=cuda", "--shared_memory_cuda", *flags)


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
