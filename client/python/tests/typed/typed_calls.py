"""Calls that type checkers accept, and calls that they refuse: an ignored line without an error is
one itself. Nothing runs this file."""

# pyright: strict, reportUnnecessaryTypeIgnoreComment=true

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

import normd
import normd.torch


def layers(x: Tensor) -> Tensor:
    norm: nn.LayerNorm = normd.torch.LayerNorm((4,), 1e-3, bias=False, activation="silu", axis=1)
    added: nn.RMSNorm = normd.torch.AddRMSNorm(4, weight_offset=1.0, dtype=torch.bfloat16)
    normd.torch.BatchNorm2d(4, 1e-3, None).eval()
    report: normd.torch.Report = normd.torch.replace(nn.Sequential(norm, added))
    assert report.replaced.keys() == {"0"}
    return norm.forward(x)


def functions(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    y: Tensor = normd.torch.layer_norm(x, (4,), w, w, 1e-3)
    y = normd.torch.instance_norm(y, None, None, w, w, True, 0.1, 1e-3, activation="relu")
    y = normd.torch.batch_norm(y, w, w, None, None, False, 0.1, 1e-3, out=x)
    return normd.torch.add_rms_norm(x, y, [4], w, 1e-3, out=(x, y))


def clients(client: normd.Client, x: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    response: normd.Response = client.call("model", {"x": x}, priority=normd.Priority.HIGH)
    assert response.batch is not None
    return client.normalize("model", x, timeout=1.0)


def wrong(x: Tensor, client: normd.Client) -> None:
    normd.torch.LayerNorm("wrong")  # type: ignore[arg-type]
    normd.torch.LayerNorm(4, epsilon=3)  # type: ignore[call-arg]
    normd.torch.RMSNorm(4, activation=3)  # type: ignore[arg-type]
    normd.torch.GroupNorm(4)  # type: ignore[call-arg]
    normd.torch.LinearNorm(4, 4, precision=32)  # type: ignore[arg-type]
    normd.torch.layer_norm(x, "4")  # type: ignore[arg-type]
    normd.torch.rms_norm(x, 4, 1e-6)  # type: ignore[arg-type]
    normd.torch.add_rms_norm(x, x, 4, out=x)  # type: ignore[arg-type]
    normd.torch.batch_norm(x)  # type: ignore[call-arg]
    normd.torch.replace(x)  # type: ignore[arg-type]
    client.normalize("model", x, timeout="1")  # type: ignore[call-overload]
    client.call("model", x, priority=3)  # type: ignore[arg-type]
