"""The functions of normd.torch, and the layers' axes."""

from __future__ import annotations

import re

import numpy as np
import pytest

torch = pytest.importorskip("torch", minversion="2.10")
normd_torch = pytest.importorskip("normd.torch", exc_type=ImportError)

from torch.nn import functional


def test_functions_refuse_bad_options():
    x = torch.randn(4, 6)
    for bad, part in (
        (lambda: normd_torch.layer_norm(x, 5), "x.shape: [4, 6], wanted [5]"),
        (lambda: normd_torch.layer_norm(x, ()), "x.shape"),
        (lambda: normd_torch.layer_norm(x, 6, axis=[2]), "axis: [2], wanted different dimensions"),
        (lambda: normd_torch.rms_norm(x, (6, 4), axis=[1, 0]), "axis: [1, 0], wanted different"),
        (lambda: normd_torch.rms_norm(x, (4, 5), axis=[0, 1]), "wanted [4, 5] as its dimensions"),
        (lambda: normd_torch.lp_normalize(x, 3), "p: 3"),
        (lambda: normd_torch.lp_normalize(x, 2, (0, -2)), "dim: (0, -2), wanted different"),
        (lambda: normd_torch.gated_rms_norm(x, x, 6, group_size=4), "group_size: 4"),
        (
            lambda: normd_torch.conditional_instance_norm(x, x, x),
            "style_index, style_weights: neither",
        ),
        (
            lambda: normd_torch.conditional_instance_norm(x, x, x, style_index=x, style_weights=x),
            "style_index, style_weights: both",
        ),
        (lambda: normd_torch.layer_norm(x, 6, activation=["relu"]), "activation: ['relu'], wanted"),
        (lambda: normd_torch.layer_norm(x, np.int64(5)), "x.shape: [4, 6], wanted [5]"),
        (lambda: normd_torch.quantized_rms_norm(x, 6, dtype=torch.uint8), "dtype: torch.uint8"),
        (lambda: normd_torch.quantized_rms_norm(x, 6, scale="column"), "scale: 'column'"),
    ):
        with pytest.raises(ValueError, match=re.escape(part)):
            bad()


def test_cases_of_normalize_take_activations():
    x, style, scale, shift = torch.randn(2, 6, 8), torch.randn(2, 6, 3), *torch.randn(2, 2, 6)
    rows, of_rows = torch.randn(2, 5, 6), (scale, shift)
    for function, arguments in (
        (normd_torch.adaptive_layer_norm, (rows, *of_rows)),
        (
            lambda *a, **o: normd_torch.add_adaptive_layer_norm(*a, **o)[0],
            (rows, rows, scale, *of_rows),
        ),
        (normd_torch.adaptive_group_norm, (x, 3, *of_rows)),
        (normd_torch.adaptive_instance_norm, (x, style)),
        (
            lambda *a, **o: normd_torch.conditional_instance_norm(
                *a, style_weights=scale[:, :2], **o
            ),
            (x, scale, shift),
        ),
    ):
        wanted = functional.leaky_relu(function(*arguments), 0.3)
        y = function(*arguments, activation="leaky_relu", slope=0.3)
        torch.testing.assert_close(y, wanted)


@pytest.mark.parametrize("activation", [None, "silu"])
def test_axes_need_not_be_adjacent(activation):
    x = torch.randn(2, 6, 5, 7)
    shape = (6, 7)
    weight, bias = torch.randn(shape), torch.randn(shape)
    moved = x.movedim(2, 1)

    def back(y):
        y = functional.silu(y) if activation else y
        return y.movedim(1, 2)

    layer = normd_torch.LayerNorm(shape, axis=(1, 3), activation=activation)
    rms = normd_torch.RMSNorm(shape, eps=1e-6, axis=(1, 3), activation=activation)
    with torch.no_grad():
        layer.weight.copy_(weight)
        layer.bias.copy_(bias)
        rms.weight.copy_(weight)
        wanted = back(functional.layer_norm(moved, shape, weight, bias))
        y = normd_torch.layer_norm(x, shape, weight, bias, axis=(1, 3), activation=activation)
        torch.testing.assert_close(y, wanted)
        assert torch.equal(layer(x), y)
        compiled = torch.compile(layer, fullgraph=True, backend="eager")
        torch.testing.assert_close(compiled(x), y)
        wanted = back(functional.rms_norm(moved, shape, weight, 1e-6))
        y = normd_torch.rms_norm(x, shape, weight, eps=1e-6, axis=(1, 3), activation=activation)
        torch.testing.assert_close(y, wanted)
        assert torch.equal(rms(x), y)
        out = torch.empty_like(x)
        options = {"eps": 1e-6, "axis": (1, 3), "activation": activation}
        assert normd_torch.rms_norm(x, shape, weight, **options, out=out) is out
        assert torch.equal(out, y)
        # For adjacent axes, the same as with the first of them.
        assert torch.equal(
            normd_torch.layer_norm(x, (6, 5), axis=(1, 2)),
            normd_torch.layer_norm(x, (6, 5), axis=1),
        )
        one = normd_torch.LayerNorm(6, axis=1)
        assert torch.equal(one(x), normd_torch.layer_norm(x, 6, one.weight, one.bias, axis=1))
        torch.testing.assert_close(
            normd_torch.lp_normalize(x, 2, (1, -1)), functional.normalize(x, dim=(1, 3))
        )


def test_axes_count_from_the_end_too():
    x = torch.randn(2, 6, 5, 7)
    for axis, first in ((-3, 1), (-1, 3), (-4, 0)):
        size = x.shape[axis]
        y = normd_torch.layer_norm(x, size, axis=axis)
        assert torch.equal(y, normd_torch.layer_norm(x, size, axis=first))
        assert torch.equal(normd_torch.LayerNorm(size, axis=axis)(x), y)
    apart = normd_torch.RMSNorm((6, 7), axis=(-3, -1))
    assert torch.equal(apart(x), normd_torch.rms_norm(x, (6, 7), axis=(1, 3)))
    with pytest.raises(ValueError, match="from dimension -5 on"):
        normd_torch.layer_norm(x, 2, axis=-5)


@pytest.mark.parametrize("other", [torch.float32, torch.float64], ids=str)
def test_places_for_a_norm_and_a_sum_are_two_tensors(other):
    """In a call of one type and in one that computes in copies."""
    t, x, residual = normd_torch, torch.randn(3, 4, 6), torch.randn(3, 4, 6, dtype=other)
    row, y, total = residual[:, 0], torch.empty_like(x), torch.empty_like(residual)
    flat = torch.empty(2 * x.numel()) if other == torch.float32 else None
    for call in (
        lambda out: t.add_layer_norm(x, residual, 6, out=out),
        lambda out: t.add_rms_norm(x, residual, 6, out=out),
        lambda out: t.add_adaptive_layer_norm(x, residual, row, row, row, out=out),
    ):
        wanted = call(None)
        for out, came in (
            ((y,), "1 tensors"),
            ((y, total, total), "3 tensors"),
            (torch.empty(2, 3, 4, 6), "Tensor"),
        ):
            part = f"out: {came}, wanted a tuple of 2 tensors"
            with pytest.raises(ValueError, match=part):
                call(out)
        shared = [(y, y.view_as(y)), (y, y.view(torch.int32).view(torch.float32))]
        if flat is not None:
            shared.append((flat[: x.numel()].view_as(x), flat[1 : x.numel() + 1].view_as(x)))
        for out in shared:
            with pytest.raises((RuntimeError, ValueError), match="residual_out: in the memory of"):
                call(out)
        assert all(map(torch.equal, call([y, total]), wanted))
        negated = (y._neg_view(), total._neg_view())
        assert all(map(torch.equal, call(negated), wanted))


def test_sizes_and_dimensions_may_be_numpys():
    x, two, six = torch.randn(4, 6, 3), np.int64(2), np.int64(6)
    t = normd_torch
    for ours, wanted in (
        (t.layer_norm(x, np.int64(3)), t.layer_norm(x, 3)),
        (t.layer_norm(x, six, axis=np.int64(1)), t.layer_norm(x, 6, axis=1)),
        (
            t.rms_norm(x, np.array([4, 3]), axis=np.array([0, 2])),
            t.rms_norm(x, (4, 3), axis=(0, 2)),
        ),
        (t.gated_rms_norm(x[..., 0], x[..., 1], six), t.gated_rms_norm(x[..., 0], x[..., 1], 6)),
        (t.lp_normalize(x, dim=two), functional.normalize(x, dim=2)),
        (t.lp_normalize(x, dim=np.array([0, 2])), functional.normalize(x, dim=(0, 2))),
        (t.LayerNorm(6, axis=np.int64(1))(x), t.layer_norm(x, 6, axis=1)),
    ):
        torch.testing.assert_close(ours, wanted)


def test_a_number_is_normalized_as_pytorch_does():
    for p in (1.0, 2.0, float("inf")):
        for dim in (0, -1):
            x = torch.tensor(-3.0)
            wanted, out = functional.normalize(x, p, dim), torch.zeros(())
            assert torch.equal(normd_torch.lp_normalize(x, p, dim), wanted)
            assert normd_torch.lp_normalize(x, p, dim, out=out) is out
            assert torch.equal(out, wanted)


def test_functions_refuse_parameters_of_another_shape():
    """As many elements, but in another order."""
    x = torch.randn(2, 6, 5, 7)
    last, apart = (5, 7), (6, 7)
    turned, other = torch.randn(7, 5), torch.randn(7, 6)
    flat = torch.randn(35)
    calls = [
        (lambda w: normd_torch.layer_norm(x, last, w), turned, "weight"),
        (lambda w: normd_torch.layer_norm(x, last, w), flat, "weight"),
        (lambda w: normd_torch.layer_norm(x, last, None, w), turned, "bias"),
        (lambda w: normd_torch.layer_norm(x, apart, w, axis=(1, 3)), other, "weight"),
        (lambda w: normd_torch.layer_norm(x, apart, None, w, axis=(1, 3)), other, "bias"),
        (lambda w: normd_torch.rms_norm(x, last, w), turned, "weight"),
        (lambda w: normd_torch.rms_norm(x, apart, w, axis=(1, 3)), other, "weight"),
        (lambda w: normd_torch.add_layer_norm(x, x, last, None, w), turned, "bias"),
        (lambda w: normd_torch.add_rms_norm(x, x, last, w), turned, "weight"),
        (lambda w: normd_torch.gated_rms_norm(x, x, last, w), turned, "weight"),
        (lambda w: normd_torch.quantized_layer_norm(x, last, None, w), turned, "bias"),
        (lambda w: normd_torch.layer_norm_with_statistics(x, last, w), turned, "weight"),
    ]
    for call, parameter, argument in calls:
        wanted = apart if parameter is other else last
        part = f"{argument}.shape: {list(parameter.shape)}, wanted {list(wanted)}"
        with pytest.raises(ValueError, match=re.escape(part)):
            call(parameter)
        call(torch.randn(wanted))


def test_functions_write_to_out():
    x, weight = torch.randn(4, 6), torch.randn(6)
    out, other = torch.empty_like(x), torch.empty_like(x)
    assert normd_torch.rms_norm(x, 6, weight, eps=1e-6, out=out) is out
    assert torch.equal(out, normd_torch.rms_norm(x, 6, weight, eps=1e-6))
    y, total = normd_torch.add_rms_norm(x, weight.expand(4, 6), 6, weight)
    normd_torch.add_rms_norm(x, weight.expand(4, 6), 6, weight, out=(out, other))
    assert torch.equal(out, y)
    assert torch.equal(other, total)
    q = normd_torch.quantized_layer_norm(x, 6, scale=0.02)
    assert q.scales is None
    torch.testing.assert_close(
        q.values.float() * 0.02, normd_torch.layer_norm(x, 6), atol=0.011, rtol=0
    )


def test_functions_take_pytorchs_arguments_by_position():
    x, mean, scale = torch.randn(4, 6, 5), torch.randn(6), torch.rand(6) + 0.5
    affine, eps = (torch.randn(6), torch.randn(6)), 0.3
    for name, arguments in (
        ("instance_norm", (x, None, None, *affine, True, 0.1, eps)),
        ("instance_norm", (x, mean, scale, *affine, False, 0.1, eps)),
        ("batch_norm", (x, mean, scale, *affine, False, 0.1, eps)),
        ("group_norm", (x, 3, *affine, eps)),
        ("layer_norm", (x.mT, (6,), *affine, eps)),
        ("layer_norm", (x.mT, torch.Size([6]), *affine, eps)),
        ("rms_norm", (x.mT, [6], affine[0], eps)),
        ("normalize", (x, 2.0, 1, eps)),
        ("normalize", (x,)),
    ):
        ours = getattr(normd_torch, name.replace("normalize", "lp_normalize"))
        torch.testing.assert_close(ours(*arguments), getattr(functional, name)(*arguments))
        if name != "normalize":
            activated = functional.relu(getattr(functional, name)(*arguments))
            torch.testing.assert_close(ours(*arguments, activation="relu"), activated)


def test_what_would_change_running_statistics_is_refused():
    x, mean, variance = torch.randn(4, 6, 5), torch.randn(6), torch.rand(6)
    for call, part in (
        (lambda: normd_torch.instance_norm(x, mean, variance), "use_input_stats: True with"),
        (lambda: normd_torch.instance_norm(x, mean), "use_input_stats: True with"),
        (lambda: normd_torch.instance_norm(x, use_input_stats=False), "False without running_mean"),
        (lambda: normd_torch.batch_norm(x, mean, variance, training=True), "training: True"),
    ):
        with pytest.raises(ValueError, match=part):
            call()


FLOATS = [torch.float32, torch.float64, torch.float16, torch.bfloat16]
MIXES = [(a, b) for a in FLOATS for b in FLOATS if a != b]


def _fused(x, other, weight):
    """{name: (the call, its formula on float64, whether the sum is returned)}"""
    row = other[:, 0].contiguous()
    gate, silu = other.double(), functional.silu
    total = x.double() + gate
    modulated = 1 + row.double()[:, None]

    def rms(v):
        return functional.rms_norm(v, (6,), weight.double(), 1e-5)

    def layer(v):
        return functional.layer_norm(v, (6,), weight.double())

    t = normd_torch
    gated = (row.double()[:, None] + 1) * layer(gate + row.double()[:, None] * x.double())
    return {
        "add_layer_norm": (lambda **o: t.add_layer_norm(x, other, 6, weight, **o), layer(total)),
        "add_rms_norm": (lambda **o: t.add_rms_norm(x, other, 6, weight, 1e-5, **o), rms(total)),
        "gated": (
            lambda **o: t.gated_rms_norm(x, other, 6, weight, **o),
            rms(x.double() * silu(gate)),
        ),
        "gated after": (
            lambda **o: t.gated_rms_norm(x, other, 6, weight, norm_before_gate=True, **o),
            rms(x.double()) * silu(gate),
        ),
        "adaptive_layer_norm": (
            lambda **o: t.adaptive_layer_norm(x, row, row, weight, **o),
            layer(x.double()) * modulated + row.double()[:, None],
        ),
        "add_adaptive_layer_norm": (
            lambda **o: t.add_adaptive_layer_norm(x, other, row, row, row, weight, **o),
            gated + row.double()[:, None],
        ),
        "adaptive_instance_norm": (
            lambda **o: t.adaptive_instance_norm(x, other, **o),
            functional.instance_norm(x.double())
            * (gate.var(2, correction=0, keepdim=True) + 1e-5).sqrt()
            + gate.mean(2, keepdim=True),
        ),
    }


@pytest.mark.parametrize(("dtype", "other"), MIXES, ids=str)
def test_other_inputs_of_another_type_lose_nothing(dtype, other):
    """A small x that float32 adds to the residual and bfloat16 would not."""
    torch.manual_seed(3)
    x, more = torch.randn(3, 4, 6).mul(2**-9).to(dtype), torch.randn(3, 4, 6).to(other)
    weight = torch.randn(6)
    wide = torch.promote_types(dtype, other)
    near = {torch.float64: 1e-10, torch.float32: 3e-5}
    torch._dynamo.reset()
    compiled = torch.compile(normd_torch.add_rms_norm, fullgraph=True, backend="eager")
    for name, (call, wanted) in _fused(x, more, weight).items():
        result = call()
        y, *sums = result if isinstance(result, tuple) else (result,)
        limit = max(near.get(wide), torch.finfo(dtype).eps)
        assert y.dtype == dtype, name
        torch.testing.assert_close(y.double(), wanted, atol=limit, rtol=limit)
        for total in sums:
            assert total.dtype == wide
        if name.startswith("add_") and "adaptive" not in name:
            exact = x.double() + more.double()
            eps = torch.finfo(wide).eps
            torch.testing.assert_close(sums[0].double(), exact, atol=eps, rtol=eps)
        places = tuple(torch.empty_like(each) for each in (y, *sums))
        assert call(out=places if sums else places[0]) is (places if sums else places[0])
        assert all(map(torch.equal, places, (y, *sums)))
        if sums:
            with pytest.raises(ValueError, match=re.escape(f"residual_out: {torch.int8}")):
                call(out=(y, sums[0].to(torch.int8)))
    assert torch.equal(compiled(x, more, 6)[0], normd_torch.add_rms_norm(x, more, 6)[0])
    quantized = normd_torch.quantized_rms_norm(x, 6, weight, residual=more)
    assert quantized.residual_out.dtype == wide
    values = quantized.values * quantized.scales[..., None]
    exact = functional.rms_norm(x.double() + more.double(), (6,), weight.double(), 1e-6)
    assert (values - exact).abs().max() <= 0.51 * quantized.scales.max()


def test_a_mixed_call_loses_no_derivative():
    x = torch.randn(4, 6, dtype=torch.bfloat16, requires_grad=True)
    for call in (
        lambda: normd_torch.add_rms_norm(x, torch.randn(4, 6), 6),
        lambda: normd_torch.add_rms_norm(torch.randn(4, 6), x, 6),
        lambda: normd_torch.gated_rms_norm(torch.randn(4, 6), x, 6),
    ):
        with pytest.raises(RuntimeError, match="requires a gradient"):
            call()


@pytest.mark.parametrize("residual_type", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(
    ("layer", "options"),
    [
        (normd_torch.AddLayerNorm, {}),
        (normd_torch.AddLayerNorm, {"bias": False, "activation": "silu"}),
        (normd_torch.AddLayerNorm, {"axis": 1}),
        (normd_torch.AddLayerNorm, {"axis": (1, 3)}),
        (normd_torch.AddRMSNorm, {}),
        (normd_torch.AddRMSNorm, {"eps": 1e-3, "weight_offset": 1.0}),
        (normd_torch.AddRMSNorm, {"axis": (1, 3), "activation": "relu"}),
    ],
)
def test_add_layers_add_and_normalize(layer, options, residual_type):
    shapes = {None: (7,), 1: (6,), (1, 3): (6, 7)}
    norm = layer(shapes[options.get("axis")], **options)
    base = layer.__mro__[1](shapes[options.get("axis")], **options)
    with torch.no_grad():
        norm.weight.normal_()
    base.load_state_dict(norm.state_dict())
    x, residual = torch.randn(2, 6, 5, 7), torch.randn(2, 6, 5, 7, dtype=residual_type)
    for run in (norm, base.add, torch.compile(norm, fullgraph=True, backend="eager")):
        y, total = run(x, residual)
        assert torch.equal(total, x + residual)
        torch.testing.assert_close(y, base(total))
