"""KernelBench level 2, problem 28: linear, norm, (z + y) * y; 1024 x 8192 to 1024 x 8192."""

import torch
from torch import nn

import normd.torch


class Model(nn.Module):
    def __init__(self, in_features: int, out_features: int) -> None:
        super().__init__()
        self.bmm = nn.Linear(in_features, out_features)
        self.instance_norm = nn.InstanceNorm2d(out_features)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        z = self.bmm(x)
        z = self.instance_norm(z.unsqueeze(1).unsqueeze(1)).squeeze(1).squeeze(1)
        return (z + y) * y


class ModelNew(nn.Module):
    """The same numbers of a random generator make the same weights as Model's."""

    def __init__(self, in_features: int, out_features: int) -> None:
        super().__init__()
        self.layer = normd.torch.LinearNorm(in_features, out_features, add=True, multiply=True)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return self.layer(x, y)


batch_size = 1024
in_features = 8192
out_features = 8192


def get_inputs() -> list[torch.Tensor]:
    return [torch.rand(batch_size, in_features), torch.rand(batch_size, out_features)]


def get_init_inputs() -> list[int]:
    return [in_features, out_features]
