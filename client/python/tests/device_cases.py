"""What the tests of tensors on devices share."""

from __future__ import annotations

import gc
import threading
import time
from typing import Any

import torch
from conftest import Blocking
from fake_cuda import FakeCuda

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


def assert_nothing_lives(cuda: FakeCuda) -> None:
    """A thread may hold the last error, and with it a frame, for a while."""
    deadline = time.monotonic() + 30
    while cuda.fake_driver.live and time.monotonic() < deadline:
        gc.collect()
        threading.Event().wait(0.01)
    assert cuda.fake_driver.live == 0


def close(client: Any) -> None:
    client.end() if isinstance(client, Blocking) else client.close()
