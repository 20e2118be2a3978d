"""Norms as other packages write them, and some that are near to one, for tests of replace."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional


class Weighted(nn.Module):
    def __init__(self, size=16, eps=1e-3):
        super().__init__()
        self.weight = nn.Parameter(torch.rand(size) + 0.5)
        self.variance_epsilon = eps


class LlamaNorm(Weighted):
    def forward(self, x):
        dtype = x.dtype
        x = x.to(torch.float32)
        x = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.variance_epsilon)
        return self.weight * x.to(dtype)


class T5Norm(Weighted):
    def forward(self, x):
        variance = x.to(torch.float32).pow(2).mean(-1, keepdim=True)
        x = x * torch.rsqrt(variance + self.variance_epsilon)
        if self.weight.dtype in (torch.float16, torch.bfloat16):
            x = x.to(self.weight.dtype)
        return self.weight * x


class GemmaNorm(Weighted):
    def _norm(self, x):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.variance_epsilon)

    def forward(self, x):
        return (self._norm(x.float()) * (1.0 + self.weight.float())).type_as(x)


class CohereNorm(Weighted):
    def forward(self, x):
        centred = x.float() - x.float().mean(-1, keepdim=True)
        variance = centred.pow(2).mean(-1, keepdim=True)
        y = self.weight.float() * centred * torch.rsqrt(variance + self.variance_epsilon)
        return y.to(x.dtype)


class WeightlessNorm(nn.Module):
    eps = 1e-4

    def forward(self, x):
        return (x.float() * torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + self.eps)).to(
            x.dtype
        )


class LayerNorm2d(nn.LayerNorm):
    def forward(self, x):
        return super().forward(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


class SequenceNorm(nn.LayerNorm):
    """Over the channels of [N, C, W] alone."""

    def forward(self, x):
        return super().forward(x.permute(0, 2, 1)).permute(0, 2, 1)


class FrozenNorm(nn.Module):
    def __init__(self, size=16):
        super().__init__()
        self.eps = 1e-3
        for name in ("weight", "bias", "running_mean", "running_var"):
            self.register_buffer(name, torch.rand(size) + 0.5)

    def forward(self, x):
        scale = self.weight * (self.running_var + self.eps).rsqrt()
        shift = self.bias - self.running_mean * scale
        return x * scale.reshape(1, -1, 1, 1) + shift.reshape(1, -1, 1, 1)


class GateFirstNorm(Weighted):
    group_size = 4

    def forward(self, x, gate=None):
        dtype = x.dtype
        x = x.to(torch.float32)
        if gate is not None:
            x = x * functional.silu(gate.to(torch.float32))
        rows = x.view(*x.shape[:-1], -1, self.group_size)
        rows = rows * torch.rsqrt(rows.pow(2).mean(-1, keepdim=True) + self.variance_epsilon)
        return self.weight * rows.view(x.shape).to(dtype)


class GateLastNorm(Weighted):
    def forward(self, x, gate):
        dtype = x.dtype
        x = x.to(torch.float32)
        x = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.variance_epsilon)
        return (self.weight * x.to(dtype) * functional.silu(gate.to(torch.float32))).to(dtype)


class EpsOutsideNorm(Weighted):
    """In the same words, another formula."""

    def forward(self, x):
        return self.weight * x / (x.pow(2).mean(-1, keepdim=True).sqrt() + self.variance_epsilon)


class Float16Norm(Weighted):
    """Another eps for float16."""

    def forward(self, x):
        eps = 1e-2 if x.dtype == torch.float16 else self.variance_epsilon
        y = x.float() * torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + eps)
        return self.weight * y.to(x.dtype)


class OneGainNorm(Weighted):
    """Its weight, of one element, is broadcast."""

    def __init__(self):
        super().__init__(1)

    def forward(self, x):
        return (
            x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.variance_epsilon) * self.weight
        )


class ThirdFromLastNorm(Weighted):
    """Normalizes the channels of [N, C, H, W], and of [C, H, W]."""

    def forward(self, x):
        y = x - x.mean(-3, keepdim=True)
        y = y / torch.sqrt(y.pow(2).mean(-3, keepdim=True) + self.variance_epsilon)
        return self.weight[:, None, None] * y


class DimensionNorm(nn.Module):
    """RMSNorm of a dimension that is the last, or the channels, in tensors of one rank alone."""

    def __init__(self, dim):
        super().__init__()
        self.eps = 1e-4
        self.norm_eps = dim

    def forward(self, x):
        return x * torch.rsqrt(x.pow(2).mean(self.norm_eps, keepdim=True) + self.eps)


class DimensionNormAct(DimensionNorm):
    def __init__(self, dim):
        super().__init__(dim)
        self.act = nn.SiLU()

    def forward(self, x):
        return self.act(super().forward(x))


class VarianceNorm(Weighted):
    """LayerNorm, or with `normalized_shape` 1 one whose variance is over n - 1."""

    normalized_shape = 0

    def forward(self, x):
        y = x - x.mean(-1, keepdim=True)
        variance = x.var(-1, keepdim=True, correction=self.normalized_shape)
        return self.weight * y / torch.sqrt(variance + self.variance_epsilon)


class FormatNorm(Weighted):
    data_format = "channels_first"

    def forward(self, x):
        if self.data_format == "channels_first":
            x = x.permute(0, 2, 3, 1)
        y = functional.layer_norm(x, (16,), self.weight, None, self.variance_epsilon)
        return y.permute(0, 3, 1, 2) if self.data_format == "channels_first" else y


class ShapeNorm(LlamaNorm):
    def forward(self, x):
        return super().forward(x) if x.shape[0] < 100 else x
