"""Slices of fused projections: rows that lie together, at a distance that is not theirs."""

from __future__ import annotations

import functools

import pytest

torch = pytest.importorskip("torch", minversion="2.10")
normd_torch = pytest.importorskip("normd.torch", exc_type=ImportError)

from torch_cases import BLOCK, FLOAT8, INT8, ROW, Maker

GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
DEVICES = ["cpu", pytest.param("cuda", marks=GPU)]
DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16)


# {name: (the tensor that a projection makes, its slice, whose samples lie together)}
SLICES = {
    "columns": ((9, 200), lambda t: t[:, 40:168], True),
    "odd columns": ((9, 203), lambda t: t[:, 3:100], True),
    "one column": ((9, 5), lambda t: t[:, 2:3], True),
    "columns of a batch": ((3, 5, 96), lambda t: t[..., 32:64], True),
    "heads": ((7, 12, 64), lambda t: t[:, 2:6], True),
    "heads of a batch": ((2, 5, 12, 33), lambda t: t[:, :, 8:], True),
    "halves of heads": ((7, 4, 64), lambda t: t[..., :32], True),
    "every second row": ((8, 64), lambda t: t[::2], True),
    "a token's": ((1, 12, 64), lambda t: t[:, 3:7], True),
    "turned heads": ((2, 5, 12, 64), lambda t: t[:, :, :4].transpose(1, 2), False),
    "every second column": ((8, 64), lambda t: t[:, ::2], False),
    "rows of all": ((4, 64), lambda t: t[:1].expand(6, 64), False),
    "overlapping": ((200,), lambda t: t.unfold(0, 64, 16), False),
    "none": ((0, 200), lambda t: t[:, :64], True),
}


def copies_of(call):
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        y = call()
    return y, sum(event.count for event in profile.key_averages() if event.key == "aten::copy_")


def cases(x, t):
    """{name: a call with x or what stands for it}"""
    size = x.shape[-1]
    weight, bias, residual = t(size), t(size), t(*x.shape)
    whole = {"statistics_out": True, "residual": residual, "write_residual": True}
    rows = (x.dim() - 1, 1, 1)  # The axis, and one group.
    return {
        "rms_norm": lambda x: (normd_torch.rms_norm(x, size, weight, activation="silu"),),
        "layer_norm": lambda x: (normd_torch.layer_norm(x, size, weight, bias),),
        "add_rms_norm": lambda x: normd_torch.add_rms_norm(x, residual, size, weight),
        "normalize": lambda x: torch.ops.normd.normalize(x, 1, *rows, 0, 1e-5, weight, **whole),
        "of absolutes": lambda x: torch.ops.normd.normalize(x, 1, *rows, 3, 1e-5),
        "int8": lambda x: torch.ops.normd.normalize(
            x, 1, *rows, 1, 1e-5, weight, quantization=INT8, quantization_scale=ROW
        ),
        "float8": lambda x: torch.ops.normd.normalize(
            x, 1, *rows, 1, 1e-5, other=residual, combine_input=2,
            quantization=FLOAT8, quantization_scale=BLOCK,
        ),
    }  # fmt: skip


@pytest.mark.parametrize("name", SLICES)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("device", DEVICES)
def test_a_slice_gives_the_bits_of_its_copy(device, dtype, name):
    sizes, cut, together = SLICES[name]
    t = Maker(device, dtype)
    whole = t(*sizes)
    x = cut(whole)
    before = whole.clone()
    calls = cases(x, t)
    copied = x.contiguous()
    wanted = {case: call(copied) for case, call in calls.items()}
    y, copies = copies_of(lambda: {case: call(x) for case, call in calls.items()})
    assert copies == (0 if together else len(calls))
    for case in calls:
        for each, reference in zip(y[case], wanted[case], strict=True):
            assert each.stride() == reference.stride()
            assert torch.equal(each.float(), reference.float()), case
    assert torch.equal(whole, before)


@pytest.mark.parametrize("name", [name for name, (_, _, together) in SLICES.items() if together])
@pytest.mark.parametrize("device", DEVICES)
def test_out_may_be_a_slice(device, name):
    sizes, cut, _ = SLICES[name]
    t = Maker(device, torch.float32)
    x, whole = t(*sizes), t(*sizes)
    before = whole.clone()
    size = cut(x).shape[-1]
    wanted = normd_torch.rms_norm(cut(x).contiguous(), size)
    for source, places in ((x, whole), (before, whole)):  # Beside its input, then in place of it.
        whole.copy_(before)
        out = cut(places)
        given = cut(source) if source is x else out
        wanted = normd_torch.rms_norm(given.contiguous(), size)
        call = functools.partial(normd_torch.rms_norm, given, size, out=out)
        _, copies = copies_of(call)
        assert copies == 0
        assert torch.equal(out, wanted)
        out.copy_(cut(before))
        assert torch.equal(whole, before), "the elements beside the slice are as they were"


def test_an_output_that_overlaps_a_slice_is_right():
    whole = torch.randn(8, 64)
    x = whole[:, 8:40]
    wanted = normd_torch.rms_norm(x.contiguous(), 32)
    out = whole[:, 16:48]
    normd_torch.rms_norm(x, 32, out=out)
    assert torch.equal(out, wanted)
    packed = torch.randn(8 * 32 + 4)
    x = packed.as_strided((4, 32), (64, 1))
    wanted = normd_torch.rms_norm(x.contiguous(), 32)
    out = packed[: 4 * 32].view(4, 32)  # Begins where x does.
    normd_torch.rms_norm(x, 32, out=out)
    assert torch.equal(out, wanted)


@pytest.mark.parametrize("device", DEVICES)
def test_slices_take_inputs_of_samples(device):
    t = Maker(device, torch.float32)
    for whole, cut in ((t(6, 96), lambda x: x[:, :32]), (t(6, 5, 96), lambda x: x[:, :4, :32])):
        x = cut(whole)
        samples = x[..., 0].numel()
        scale = t(samples, 32)
        arguments = (1, x.dim() - 1, 1, 1, 0, 1e-5)
        y = torch.ops.normd.normalize(x, *arguments, scale=scale)[0]
        assert torch.equal(y, torch.ops.normd.normalize(x.contiguous(), *arguments, scale=scale)[0])
    x, scale = t(3, 8, 32)[:, 2:7], t(3, 32)
    y, copies = copies_of(lambda: normd_torch.adaptive_layer_norm(x, scale, scale))
    assert copies == 0
    assert torch.equal(y, normd_torch.adaptive_layer_norm(x.contiguous(), scale, scale))
