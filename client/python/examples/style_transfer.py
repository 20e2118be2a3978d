#!/usr/bin/env python3
"""Style transfer with a bank of 32 styles through the service: conditional InstanceNorm.

    ./deploy/demo.sh --keep                                       # serves style_bank_64_32
    python3 client/python/examples/style_transfer.py [--server=127.0.0.1:8001]

A small convolutional network encodes one picture; the service normalizes its features with each of
32 styles, and with mixtures of two, all sent at once; the network decodes them to pictures. Results
are checked against PyTorch's own instance_norm and the model's parameters. The network's weights
are random: the pictures show that styles differ, and no painter.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

import normd

MODEL, CHANNELS, STYLES = "style_bank_64_32", 64, 32
REPOSITORY = Path(__file__).resolve().parents[3] / "deploy" / "models"


def network() -> tuple[nn.Module, nn.Module]:
    """The halves before and after the normalization."""
    encoder = nn.Sequential(
        nn.Conv2d(3, 32, 9, padding=4, padding_mode="reflect"),
        nn.ReLU(),
        nn.Conv2d(32, CHANNELS, 3, stride=2, padding=1),
    )
    decoder = nn.Sequential(
        nn.ReLU(),
        nn.Upsample(scale_factor=2, mode="nearest"),
        nn.Conv2d(CHANNELS, 32, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(32, 3, 9, padding=4, padding_mode="reflect"),
        nn.Sigmoid(),
    )
    return encoder, decoder


def picture(size: int) -> Tensor:
    """Rings and a gradient, [1, 3, size, size]."""
    axis = torch.linspace(-1, 1, size)
    y, x = torch.meshgrid(axis, axis, indexing="ij")
    rings = torch.sin(20 * (x * x + y * y).sqrt())
    return torch.stack([rings, x * y, x])[None]


def mixtures() -> Tensor:
    """Each style alone, then each halfway to the next: [64, STYLES]."""
    alone = torch.eye(STYLES)
    return torch.cat([alone, (alone + alone.roll(1, 0)) / 2])


def reference(features: Tensor, weights: Tensor) -> Tensor:
    """The same by PyTorch, in float64."""
    parameters = load_file(REPOSITORY / MODEL / "1" / "params.safetensors")
    gamma, beta = (weights.double() @ parameters[name].double() for name in ("weight", "bias"))
    y = nn.functional.instance_norm(features.double())
    return y * gamma[:, None, None] + beta[:, None, None]


async def stylize(server: str, features: Tensor, weights: Tensor) -> list[normd.Response]:
    async with normd.aio.Client(server) as client:
        await client.wait_ready(MODEL)
        return await asyncio.gather(
            *(
                client.call(MODEL, {"x": features, "style_weights": each[None].contiguous()})
                for each in weights
            )
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--server", default="127.0.0.1:8001")
    parser.add_argument("--size", type=int, default=128)
    parser.add_argument("--out", type=Path, help="a .npy file for the pictures")
    options = parser.parse_args()
    torch.manual_seed(0)
    encoder, decoder = network()
    weights = mixtures()
    with torch.inference_mode():
        features = encoder(picture(options.size))
        begin = time.perf_counter()
        responses = asyncio.run(stylize(options.server, features, weights))
        seconds = time.perf_counter() - begin
        pictures, largest = [], 0.0
        for response, each in zip(responses, weights, strict=True):
            error = (response.output.double() - reference(features, each)).abs().max().item()
            largest = max(largest, error)
            pictures.append(decoder(response.output)[0].numpy())
    assert largest < 1e-4, largest
    batches = [response.batch.requests for response in responses]
    print(f"{len(responses)} styles of {list(features.shape)} in {seconds * 1e3:.1f} ms")
    print(f"requests in a batch: {min(batches)} to {max(batches)}; largest error {largest:.1e}")
    distinct = np.abs(np.diff(np.stack(pictures[:STYLES]), axis=0)).max(axis=(1, 2, 3))
    print(f"neighbouring styles differ by {distinct.min():.3f} to {distinct.max():.3f}")
    assert distinct.min() > 0
    if options.out:
        np.save(options.out, np.stack(pictures))


if __name__ == "__main__":
    main()
