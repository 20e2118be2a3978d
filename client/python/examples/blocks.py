#!/usr/bin/env python3
"""A ResNet-like and a DiT-like block with normd's layers in place of PyTorch's: compared and timed.

    python3 examples/blocks.py [--device=cuda] [--dtype=bfloat16] [--small] [--no-compile]

The ResNet-like block is PyTorch's, given to normd.torch.replace. The DiT-like block is written a
second time with the operators that its gates, scales and shifts are stages of.
"""

from __future__ import annotations

import argparse
import copy
from collections.abc import Callable

import torch
from timing import medians, table
from torch import Tensor, nn
from torch.nn import functional

import normd.torch


class ResidualBlock(nn.Module):
    """GroupNorm, SiLU, convolution, twice, and the input added: as in diffusion's U-Nets."""

    def __init__(self, channels: int, groups: int = 32) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.GroupNorm(groups, channels),
            nn.SiLU(),
            nn.Conv2d(channels, channels, 3, padding=1),
            nn.GroupNorm(groups, channels),
            nn.SiLU(),
            nn.Conv2d(channels, channels, 3, padding=1),
        )

    def forward(self, x: Tensor) -> Tensor:
        return x + self.body(x)


class DiTBlock(nn.Module):
    """Attention and an MLP, each between a modulated LayerNorm and a gate (adaLN-Zero)."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1 = nn.LayerNorm(width, eps=1e-6, elementwise_affine=False)
        self.norm2 = nn.LayerNorm(width, eps=1e-6, elementwise_affine=False)
        self.qkv = nn.Linear(width, 3 * width)
        self.projection = nn.Linear(width, width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(approximate="tanh"), nn.Linear(4 * width, width)
        )
        self.modulation = nn.Sequential(nn.SiLU(), nn.Linear(width, 6 * width))

    def attend(self, x: Tensor) -> Tensor:
        n, tokens, width = x.shape
        q, k, v = self.qkv(x).view(n, tokens, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(q, k, v)
        return self.projection(mixed.transpose(1, 2).reshape(n, tokens, width))

    def forward(self, x: Tensor, condition: Tensor) -> Tensor:
        shift1, scale1, gate1, shift2, scale2, gate2 = self.modulation(condition).chunk(6, dim=-1)
        y = self.norm1(x) * (1 + scale1[:, None]) + shift1[:, None]
        x = x + gate1[:, None] * self.attend(y)
        y = self.norm2(x) * (1 + scale2[:, None]) + shift2[:, None]
        return x + gate2[:, None] * self.mlp(y)


class FusedDiTBlock(DiTBlock):
    """The same on normd's operators: the first gate and sum belong to the second norm."""

    def forward(self, x: Tensor, condition: Tensor) -> Tensor:
        # One copy makes all six dense, as the operators take them.
        parts = torch.stack(self.modulation(condition).chunk(6, dim=-1))
        shift1, scale1, gate1, shift2, scale2, gate2 = parts.unbind()
        y = normd.torch.adaptive_layer_norm(x, scale1, shift1, eps=1e-6)
        y, x = normd.torch.add_adaptive_layer_norm(
            self.attend(y), x, gate1, scale2, shift2, eps=1e-6
        )
        return x + gate2[:, None] * self.mlp(y)


def randomize(module: nn.Module) -> nn.Module:
    """Parameters as of a model that has learnt: no zeros, no ones."""
    for parameter in module.parameters():
        if parameter.dim() == 1:
            parameter.add_(torch.randn_like(parameter) * 0.1)
    return module.eval()


def compare(
    title: str,
    theirs: nn.Module,
    ours: nn.Module,
    inputs: tuple[Tensor, ...],
    device: str,
    compiled: bool,
) -> None:
    expected, result = theirs(*inputs), ours(*inputs)
    error = (result - expected).abs().max().item()
    limit = 1e-3 if expected.dtype == torch.float32 else 0.06
    assert torch.allclose(result.float(), expected.float(), rtol=limit, atol=limit), error
    runs: dict[str, Callable[[], object]] = {
        "eager": lambda: theirs(*inputs),
        "normd.torch": lambda: ours(*inputs),
    }
    if compiled:
        fast, ours_fast = torch.compile(theirs), torch.compile(ours, fullgraph=True)
        runs["torch.compile"] = lambda: fast(*inputs)
        runs["normd.torch, torch.compile"] = lambda: ours_fast(*inputs)
    table(title, medians(runs, device), error)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--small", action="store_true", help="for a machine without a GPU")
    parser.add_argument("--compile", action=argparse.BooleanOptionalAction, default=True)
    options = parser.parse_args()
    dtype, device = getattr(torch, options.dtype), options.device
    torch.manual_seed(0)
    with torch.inference_mode(), torch.device(device):
        channels, size, batch = (64, 32, 2) if options.small else (320, 64, 16)
        theirs = randomize(ResidualBlock(channels).to(dtype))
        ours = copy.deepcopy(theirs)
        print(normd.torch.replace(ours, fuse_activations=True))
        x = torch.randn(batch, channels, size, size, dtype=dtype)
        title = f"ResNet-like, {list(x.shape)} {options.dtype}"
        compare(title, theirs, ours, (x,), device, options.compile)
        x = x.to(memory_format=torch.channels_last)
        theirs, ours = (each.to(memory_format=torch.channels_last) for each in (theirs, ours))
        compare(title + " channels last", theirs, ours, (x,), device, options.compile)

        width, heads, tokens = (128, 4, 64) if options.small else (1152, 16, 256)
        theirs = randomize(DiTBlock(width, heads).to(dtype))
        fused = FusedDiTBlock(width, heads).to(dtype).eval()
        fused.load_state_dict(theirs.state_dict())
        inputs = (
            torch.randn(batch, tokens, width, dtype=dtype),
            torch.randn(batch, width, dtype=dtype),
        )
        title = f"DiT-like, {list(inputs[0].shape)} {options.dtype}"
        compare(title, theirs, fused, inputs, device, options.compile)


if __name__ == "__main__":
    main()
