"""What the operators of normd.torch refuse, and in which words."""

from __future__ import annotations

import re

import pytest

torch = pytest.importorskip("torch", minversion="2.10")
normd_torch = pytest.importorskip("normd.torch", exc_type=ImportError)

pytestmark = pytest.mark.usefixtures("no_grad")


@pytest.fixture
def no_grad():
    with torch.no_grad():
        yield


@pytest.mark.parametrize(
    ("call", "parts"),
    [
        (lambda o, x, w: o.group_norm(x, 5), ["groups: 5", "a divisor of 6"]),
        (lambda o, x, w: o.group_norm(x, 3, w[:4]), ["weight.shape: [4]", "6 elements"]),
        (lambda o, x, w: o.group_norm(x, 3, w.int()), ["weight.dtype", "bfloat16"]),
        (
            lambda o, x, w: o.group_norm(x, 3, w.reshape([1] * 80 + [6])),
            ["weight.shape: [1, 1", "at most 64 dimensions"],
        ),
        (lambda o, x, w: o.group_norm(x.int(), 3), ["x.dtype", "float32, float64"]),
        (lambda o, x, w: o.group_norm(w, 3), ["x.shape: [6]", "at least 2 dimensions"]),
        (lambda o, x, w: o.instance_norm(x, eps=-1.0), ["eps: -1", ">= 0"]),
        (lambda o, x, w: o.instance_norm(x, running_mean=w), ["mean and variance: missing"]),
        (lambda o, x, w: o.layer_norm(x, 3, 2), ["x.shape", "at least 5 dimensions"]),
        (lambda o, x, w: o.layer_norm(x, -1, 1), ["axis: -1", "from 0 to 63"]),
        (lambda o, x, w: o.layer_norm(x, 2**63 - 1, 1), ["axis: 9223372036854775807"]),
        (lambda o, x, w: o.layer_norm(x, 1, 0), ["axes: 0", "from 1 to 64"]),
        (lambda o, x, w: o.layer_norm(x, 1, 2**63 - 1), ["axes: 9223372036854775807"]),
        (
            lambda o, x, w: o.layer_norm(x, 1, 1, more_axes=1 << 4),
            ["more_axes: 16", "bits of dimensions from 2 to 3"],
        ),
        (lambda o, x, w: o.rms_norm(x, 1, 2, more_axes=1 << 2), ["more_axes: 4"]),
        (lambda o, x, w: o.rms_norm(x, 1, 1, more_axes=-8), ["more_axes: -8"]),
        (lambda o, x, w: o.layer_norm(x, 1, 1, w, more_axes=1 << 3), ["weight.shape: [6]", "24"]),
        (
            lambda o, x, w: o.rms_norm(x.new_zeros([2] * 9), 0, 1, more_axes=0b101010100),
            ["more_axes: 340", "at most 4 runs"],
        ),
        (lambda o, x, w: o.rms_norm(x, 3, 1, activation=99), ["activation"]),
        (lambda o, x, w: o.add_rms_norm(x, x[:1], 3, 1), ["residual.shape: [1, 6, 4, 4]", "as x"]),
        (lambda o, x, w: o.add_rms_norm(x, x.double(), 3, 1), ["residual.dtype"]),
        (
            lambda o, x, w: normd_torch.adaptive_group_norm(x, 3, x, x),
            ["scale.shape: [2, 6, 4, 4]", "[2, 6]"],
        ),
        (
            lambda o, x, w: o.normalize(
                x, 0, 1, 1, 0, 0, weight=w, style_index=torch.zeros(2).long()
            ),
            ["weight.shape: [6]", "[styles, 6]"],
        ),
        (
            lambda o, x, w: o.normalize(
                x, 0, 1, 1, 0, 0, weight=w[None], style_index=torch.tensor([0, 1])
            ),
            ["style"],
        ),
        (
            lambda o, x, w: o.normalize(
                x, 0, 1, 1, 0, 0, weight=w[None], style_index=torch.zeros(2)
            ),
            ["style_index.dtype", "int64"],
        ),
        (
            lambda o, x, w: normd_torch.conditional_instance_norm(
                x, w.new_ones(5, 6), w.new_ones(6, 5), style_index=torch.zeros(2).long()
            ),
            ["bias.shape: [6, 5], wanted [5, 6] as weight"],
        ),
        (
            lambda o, x, w: normd_torch.conditional_instance_norm(
                x, w.new_ones(2, 6), w.new_ones(12), style_weights=x.new_ones(2, 2)
            ),
            ["bias.shape: [12], wanted [2, 6] as weight"],
        ),
        (
            lambda o, x, w: normd_torch.adaptive_instance_norm(x, x[..., :0]),
            ["style.shape: [2, 6, 4, 0], wanted at least one position"],
        ),
        (lambda o, x, w: normd_torch.rms_norm(x.int(), 4), ["x.dtype: int32, wanted float32"]),
        (lambda o, x, w: normd_torch.RMSNorm(4)(x.int()), ["x.dtype: int32, wanted float32"]),
        (lambda o, x, w: normd_torch.RMSNorm(4).add(x.int(), x.int()), ["x.dtype: int32, wanted"]),
        (
            lambda o, x, w: normd_torch.adaptive_instance_norm(x, x[:, :3]),
            ["style.shape", "[2, 6, *]"],
        ),
        (
            lambda o, x, w: o.normalize(
                x, 0, 1, 1, 0, 0, weight=w[None], style_index=w.long(), style_weights=x
            ),
            ["style_index, style_weights: both, wanted one"],
        ),
        (
            lambda o, x, w: o.add_rms_norm.out(x, x, 3, 1, out=x.clone()),
            ["residual_out: None, wanted a tensor"],
        ),
        (
            lambda o, x, w: o.normalize.out(x, 0, 1, 1, 0, 0, statistics_out=True, out=x.clone()),
            ["mean: None, wanted a tensor"],
        ),
        (lambda o, x, w: o.instance_norm.out(x, out=x[:1]), ["out.shape: [1, 6, 4, 4]"]),
        (lambda o, x, w: o.instance_norm.out(x, out=x.double()), ["out.dtype"]),
        (lambda o, x, w: o.normalize(x, 0, 1, 1, 0, 77), ["statistics"]),
        (lambda o, x, w: o.normalize(x, 3, 1, 1, 0, 0), ["form: 3", "0, 1 or 2"]),
        (
            lambda o, x, w: o.normalize(x, 1, 0, 1, 1, 0, scale=x.new_zeros(2, 2)),
            ["scale.shape: [2, 2]", "[1, 2]"],
        ),
        (
            lambda o, x, w: o.normalize(x, 1, 2, 2, 1, 0, shift=x.new_zeros(2, 16)),
            ["shift.shape: [2, 16]", "[12, 16]"],
        ),
        (
            lambda o, x, w: o.normalize(
                x, 1, 2, 2, 1, 0, weight=x.new_ones(3, 16), style_index=torch.tensor([0, 1])
            ),
            ["style_index.shape: [2]", "[12]"],
        ),
        (lambda o, x, w: o.normalize(x, 1, 3, 1, 0, 0, style=x), ["style: ", "form 1", "form 0"]),
        (lambda o, x, w: o.normalize(x, 2, 0, 1, 0, 0, style=x), ["style: ", "form 2", "form 0"]),
    ],
)
def test_bad_calls_name_what_is_wrong(call, parts):
    x, weight = torch.randn(2, 6, 4, 4), torch.randn(6)
    with pytest.raises(RuntimeError) as error:
        call(torch.ops.normd, x, weight)
    for part in parts:
        assert part in str(error.value)


FLOATS = {torch.float32, torch.float64, torch.float16, torch.bfloat16}
DTYPES = {each for each in vars(torch).values() if isinstance(each, torch.dtype)}


@pytest.mark.parametrize("dtype", sorted(DTYPES - FLOATS, key=str), ids=str)
def test_other_types_are_refused_by_name(dtype):
    """As x, a parameter, a second input, and `out`."""
    try:
        x = torch.empty(4, 8, dtype=dtype)
    except (RuntimeError, TypeError):
        pytest.skip("PyTorch has no such tensors")
    if x.is_quantized:
        with pytest.raises(NotImplementedError, match="Quantized"):
            normd_torch.rms_norm(x, 8, eps=1)
        return
    y, name = torch.randn(4, 8), str(dtype).removeprefix("torch.")
    float8 = dtype == torch.float8_e4m3fn
    for argument, wanted, call in (
        ("x", "float32, float64, float16 or bfloat16", lambda: normd_torch.rms_norm(x, 8, eps=1)),
        ("weight", "float32, float64", lambda: normd_torch.rms_norm(y, 8, x[0])),
        ("residual", "float32 as x's", lambda: normd_torch.add_rms_norm(y, x, 8)),
        ("other", "float32 as x's", lambda: normd_torch.gated_rms_norm(y, x, 8)),
        ("out", "float32", lambda: normd_torch.rms_norm(y, 8, out=x)),
        (
            "out",
            "int8" if float8 else "float8_e4m3fn",
            lambda: torch.ops.normd.normalize.out(
                y, 1, 1, 1, 1, 1, quantization=1 if float8 else 2, output_scale=1.0, out=x
            ),
        ),
    ):
        words = f"{argument}.dtype: {name}, wanted {wanted}"
        with pytest.raises(RuntimeError, match=re.escape(words)):
            call()
