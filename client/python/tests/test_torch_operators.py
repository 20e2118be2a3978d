"""The operators of normd.torch against PyTorch in float64; also on CUDA, where there is a GPU."""

from __future__ import annotations

import inspect
import math

import pytest

torch = pytest.importorskip("torch", minversion="2.10")
normd_torch = pytest.importorskip(
    "normd.torch", reason="built without the kernels", exc_type=ImportError
)

from torch.utils._python_dispatch import TorchDispatchMode
from torch_cases import BLOCK, CASES, FIRST, FLOAT8, INT8, ROW, Maker, double

DEVICES = [
    "cpu",
    pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")),
]
# The largest error relative to max(1, |reference|): float64 and float32 as the kernels promise, 16
# bits as one unit in the last place.
LIMITS = {
    torch.float64: 1e-12,
    torch.float32: 2e-6,
    torch.float16: 2.0**-10,
    torch.bfloat16: 2.0**-7,
}

pytestmark = pytest.mark.usefixtures("no_grad")


@pytest.fixture
def no_grad():
    with torch.no_grad():
        yield


def outputs(result):
    return (result,) if isinstance(result, torch.Tensor) else tuple(result)


def references(case, arguments, dtype):
    options = {}
    if "dtype" in inspect.signature(case.reference).parameters:
        options["dtype"] = dtype
    return outputs(case.reference(*map(double, arguments), **options))


def check(case, dtype, results, wanted):
    assert len(results) == len(wanted)
    for y, reference in zip(results, wanted, strict=True):
        assert y.dtype == dtype
        assert y.shape == reference.shape
        error = (y.double() - reference).abs() / reference.abs().clamp(min=1)
        assert error.max() <= LIMITS[dtype], case


@pytest.mark.parametrize("dtype", LIMITS, ids=str)
@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("device", DEVICES)
def test_results_are_those_of_pytorch_in_float64(device, case, dtype):
    arguments = case.arguments(Maker(device, dtype))
    check(case, dtype, outputs(case.call(*arguments)), references(case, arguments, dtype))


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("device", DEVICES)
def test_out_variants_write_the_same_bits(device, case):
    arguments = case.arguments(Maker(device, torch.float32))
    wanted = outputs(case.call(*arguments))
    names = ("out", "residual_out")[: len(wanted)]
    for place in (torch.empty_like, lambda y: torch.empty(*y.shape, 2, device=device)[..., 0]):
        written = {name: place(y).fill_(777) for name, y in zip(names, wanted, strict=True)}
        assert case.call.out(*arguments, **written) is None
        for name, y in zip(names, wanted, strict=True):
            assert torch.equal(written[name], y), case


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("device", DEVICES)
def test_out_may_be_x_and_may_overlap_it(device, case):
    arguments = case.arguments(Maker(device, torch.float32))
    if len(arguments) < 1 or not arguments[0].is_contiguous():
        pytest.skip("x is copied")
    x = arguments[0]
    wanted = outputs(case.call(*arguments))
    others = {"residual_out": torch.empty_like(x)} if len(wanted) == 2 else {}
    memory = torch.empty(x.numel() + 1, device=device)
    for out_at, x_at in ((0, 0), (1, 0), (0, 1)):
        place, source = (memory[at:][: x.numel()].view(x.shape) for at in (out_at, x_at))
        source.copy_(x)
        case.call.out(source, *arguments[1:], out=place, **others)
        assert torch.equal(place, wanted[0]), (case, out_at, x_at)


class Recorder(TorchDispatchMode):
    """Keeps the calls of normd's operators."""

    def __init__(self):
        super().__init__()
        self.calls = []

    def __torch_dispatch__(self, operator, types, arguments=(), options=None):
        options = options or {}
        if operator.namespace == "normd":
            self.calls.append((operator, arguments, options))
        return operator(*arguments, **options)


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("device", DEVICES)
def test_opcheck(device, case):
    arguments = case.arguments(Maker(device, torch.float32))
    with Recorder() as recorder:
        y = outputs(case.call.default(*arguments))
        names = ("out", "residual_out")[: len(y)]
        written = {name: torch.empty_like(each) for name, each in zip(names, y, strict=True)}
        case.call.out(*arguments, **written)
    assert [operator._overloadname for operator, *_ in recorder.calls] == ["default", "out"]
    # Tracing depends on the operator alone; fake results depend on the layout too.
    checks = ["test_schema", "test_faketensor"]
    if case is FIRST[case.operator]:
        checks += ["test_autograd_registration", "test_aot_dispatch_dynamic"]
    for call in recorder.calls:
        torch.library.opcheck(*call, test_utils=checks)


@pytest.mark.parametrize("device", DEVICES)
def test_opcheck_of_every_stage_at_once(device):
    t = Maker(device, torch.float32)
    rows = (t(5, 300), 1, 1, 1, 1, 0, 1e-5, t(300), t(300))
    channels = (t(4, 6, 5, 7), 0, 1, 1, 0, 0, 1e-5)
    apart = (t(2, 6, 5, 7, 3), 1, 1, 1, 1, 0, 1e-5, t(42), t(42))
    features = (t(2, 7, 64), 2, 0, 1, 1, 1, 1e-5)
    for arguments, options in (
        (rows, {"statistics_out": True, "residual": t(5, 300), "write_residual": True}),
        (rows, {"quantization": INT8, "quantization_scale": ROW, "input_bias": t(300)}),
        (rows, {"quantization": FLOAT8, "quantization_scale": BLOCK}),
        (apart, {"statistics_out": True, "quantization": INT8, "quantization_scale": ROW}),
        (apart, {"residual": t(2, 6, 5, 7, 3), "write_residual": True}),
        (rows, {"quantization": INT8, "output_scale": 0.1, "other": t(5, 300), "combine_input": 2}),
        (channels, {"statistics_out": True, "scale": t(4, 6), "shift": t(4, 6)}),
        (channels, {"weight": t(3, 6), "style_index": t.index(3, 4)}),
        (features, {"scale": t(2, 64), "statistics_out": True}),
    ):
        if arguments is apart:
            options["more_axes"] = 1 << 3
        operator = torch.ops.normd.normalize
        torch.library.opcheck(operator.default, arguments, options)
        results = operator.default(*arguments, **options)
        names = ("out", "residual_out", "mean", "rstd", "scales")
        written = {name: torch.empty_like(y) for name, y in zip(names, results, strict=True)}
        operator.out(*arguments, **options, **written)
        for name, y in zip(names, results, strict=True):
            assert torch.equal(written[name].float(), y.float()), name


@pytest.mark.parametrize(
    ("make", "axis", "axes", "more"),
    [
        (lambda t: t(4, 33), 1, 1, 0),
        (lambda t: t(4, 6, 5, 7), 1, 1, 0),
        (lambda t: t.channels_last(4, 6, 5, 7), 1, 1, 0),
        (lambda t: t(3, 4, 2, 33), 2, 2, 0),
        (lambda t: t(3, 4, 7, 5).movedim(2, 3), 2, 1, 0),
        (lambda t: t(33, 5), 0, 1, 0),
        (lambda t: t(5, 33).t(), 0, 1, 0),
        (lambda t: t(4, 6, 5, 7), 1, 1, 1 << 3),
    ],
)
@pytest.mark.parametrize("device", DEVICES)
def test_axes_take_inputs_of_the_samples_before_them(device, make, axis, axes, more):
    t = Maker(device, torch.float32)
    x = make(t)
    normalized = [d for d in range(x.dim()) if axis <= d < axis + axes or more >> d & 1]
    channels = math.prod(x.shape[d] for d in normalized)
    shape = [x.shape[d] if d < axis or d in normalized else 1 for d in range(x.dim())]
    samples = math.prod(x.shape[:axis])
    residual = t(*x.shape)
    gate, scale, shift = (t(samples, channels) for _ in range(3))
    arguments = (x, 1, axis, axes, 1, 0, 1e-5)
    options = {"residual": residual, "gate": gate, "scale": scale, "shift": shift}
    options["more_axes"] = more
    torch.library.opcheck(torch.ops.normd.normalize.default, arguments, options)
    y = torch.ops.normd.normalize(*arguments, **options)[0]

    def beside(each):
        return each.double().reshape(shape)

    v = residual.double() + beside(gate) * x.double()
    v = v - v.mean(normalized, keepdim=True)
    v = v * (v.square().mean(normalized, keepdim=True) + 1e-5).rsqrt()
    wanted = v * (1 + beside(scale)) + beside(shift)
    torch.testing.assert_close(y.double(), wanted, rtol=1e-5, atol=1e-5)

    table, index = t(3, channels), t.index(3, samples)
    y = torch.ops.normd.normalize(*arguments, table, style_index=index, more_axes=more)[0]
    picked = torch.ops.normd.normalize(*arguments, scale=table[index] - 1, more_axes=more)[0]
    torch.testing.assert_close(y, picked)


@pytest.mark.parametrize("device", DEVICES)
def test_empty_tensors_give_empty_results(device):
    x, weight = torch.empty(0, 6, 5, device=device), torch.ones(6, device=device)
    o, f, none = torch.ops.normd, normd_torch, torch.empty(0, 6, device=device)
    for y in (
        o.group_norm(x, 3, weight),
        o.instance_norm(x, weight),
        o.layer_norm(x, 2, 1),
        o.rms_norm(x, 1, 1, weight),
        *o.add_rms_norm(x, x, 2, 1),
        f.adaptive_group_norm(x, 3, none, none),
        f.adaptive_instance_norm(x, x),
    ):
        assert y.shape == x.shape
    assert o.instance_norm(torch.empty(2, 6, 0, device=device)).shape == (2, 6, 0)


@pytest.mark.parametrize("device", DEVICES)
def test_results_of_rows_without_elements_are_pytorchs(device):
    o, tiny = torch.ops.normd, torch.finfo(torch.float32).tiny
    for dtype in (torch.float32, torch.float64, torch.bfloat16):
        for shape, dims in (((3, 0), 1), ((0,), 1), ((2, 3, 0, 4), 2), ((0, 3, 0), 1)):
            x = torch.empty(shape, dtype=dtype, device=device)
            first = x.dim() - dims
            torch.full((1000,), 7.0, device=device)  # Its memory may be the results'.
            _, mean, rstd = torch.native_layer_norm(x, shape[first:], None, None, 1e-5)
            _, *ours = normd_torch.layer_norm_with_statistics(x, shape[first:])
            for result, theirs in zip(ours, (mean, rstd), strict=True):
                assert torch.equal(result.isnan(), theirs.isnan().reshape(shape[:first]))
                assert torch.equal(result.nan_to_num(), torch.zeros_like(result))
            written = [torch.full_like(each, 7) for each in ours]
            o.normalize.out(
                x, 1, first, dims, 1, 0, statistics_out=True,
                out=x.clone(), mean=written[0], rstd=written[1],
            )  # fmt: skip
            assert all(map(torch.equal, (each.nan_to_num() for each in written),
                           (each.nan_to_num() for each in ours)))  # fmt: skip
            scales = normd_torch.quantized_layer_norm(x, shape[first:]).scales
            assert torch.equal(scales, torch.full(shape[:first], tiny, device=device))


@pytest.mark.parametrize("device", DEVICES)
def test_a_rows_bits_do_not_depend_on_its_batch(device):
    t = Maker(device, torch.float32)
    x, weight = t(64, 8, 16, 16), t(8)
    whole = torch.ops.normd.group_norm(x, 4, weight)
    for i in (0, 5, 63):
        assert torch.equal(torch.ops.normd.group_norm(x[i : i + 1], 4, weight), whole[i : i + 1])


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("bias", [1e4, 0.0])
def test_statistics_are_those_of_the_rows(device, bias):
    t = Maker(device, torch.float32)
    x = t(6, 300) + bias
    y, _, mean, rstd, _ = torch.ops.normd.normalize(x, 1, 1, 1, 1, 0, 1e-5, statistics_out=True)
    wide = x.double()
    assert torch.allclose(mean.double(), wide.mean(-1), rtol=1e-6, atol=1e-7)
    expected = (wide.var(-1, correction=0) + 1e-5).rsqrt()
    assert torch.allclose(rstd.double(), expected, rtol=1e-5)
    assert torch.equal(y, torch.ops.normd.layer_norm(x, 1, 1))


@pytest.mark.parametrize("device", DEVICES)
def test_statistics_of_axes_apart_are_those_of_the_rows(device):
    x = Maker(device, torch.float32)(2, 6, 5, 7, 3)
    results = torch.ops.normd.normalize(
        x, 1, 1, 1, 1, 0, 1e-5, statistics_out=True, more_axes=1 << 3
    )
    wide = x.double()
    assert results[2].shape == results[3].shape == (2, 5, 3)
    assert torch.allclose(results[2].double(), wide.mean((1, 3)), rtol=1e-6, atol=1e-6)
    expected = (wide.var((1, 3), correction=0) + 1e-5).rsqrt()
    assert torch.allclose(results[3].double(), expected, rtol=1e-5)
    # Adjacent axes by bits have the bits of the same axes by their number.
    assert torch.equal(
        torch.ops.normd.rms_norm(x, 1, 1, more_axes=1 << 2), torch.ops.normd.rms_norm(x, 1, 2)
    )


@pytest.mark.parametrize("groups", [0, 1, 3])
@pytest.mark.parametrize(
    ("form", "make"),
    [
        (1, lambda t: t(2, 6, 5, 7)),
        (1, lambda t: t.channels_last(2, 6, 5, 7)),
        (2, lambda t: t(2, 5, 7, 6)),
    ],
)
@pytest.mark.parametrize("device", DEVICES)
def test_groups_are_behind_the_positions_in_results_of_rows(device, form, make, groups):
    t = Maker(device, torch.float32)
    x = make(t)
    last = x.double() if form == 2 else x.double().movedim(1, -1)
    rows = last.reshape(2, 5, 7, groups or 6, -1)
    rows = rows[..., 0, :] if groups == 1 else rows
    operator = torch.ops.normd.normalize
    quantized = {"quantization": INT8, "quantization_scale": ROW}
    for modulation in ({}, {"scale": t(2, 6).zero_()}):
        arguments = (x, form, 1, 1, groups, 0, 1e-5)
        options = {"statistics_out": True, **modulation}
        torch.library.opcheck(operator.default, arguments, options)
        _, _, mean, rstd, _ = results = operator.default(*arguments, **options)
        torch.testing.assert_close(mean.double(), rows.mean(-1), rtol=1e-5, atol=1e-6)
        expected = (rows.var(-1, correction=0) + 1e-5).rsqrt()
        torch.testing.assert_close(rstd.double(), expected, rtol=1e-4, atol=1e-6)
        names = ("out", "residual_out", "mean", "rstd", "scales")
        written = {name: torch.empty_like(y) for name, y in zip(names, results, strict=True)}
        operator.out(*arguments, **options, **written)
        assert torch.equal(written["mean"], mean)
        arguments = (x, form, 1, 1, groups, 1, 1e-5)
        scales = operator.default(*arguments, **quantized, **modulation)[4]
        expected = (rows / (rows.square().mean(-1, keepdim=True) + 1e-5).sqrt()).abs().amax(-1)
        torch.testing.assert_close(scales.double() * 127, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("device", DEVICES)
def test_scales_of_blocks_have_the_groups_behind_the_positions(device):
    x = Maker(device, torch.float32)(2, 3, 600)
    quantized = {"quantization": INT8, "quantization_scale": BLOCK}
    arguments = (x, 2, 0, 1, 2, 1, 1e-5)
    torch.library.opcheck(torch.ops.normd.normalize.default, arguments, quantized)
    scales = torch.ops.normd.normalize(*arguments, **quantized)[4]
    rows = x.double().reshape(2, 3, 2, 300)
    rows = rows / (rows.square().mean(-1, keepdim=True) + 1e-5).sqrt()
    blocks = torch.nn.functional.pad(rows, (0, 84)).view(2, 3, 2, 3, 128).abs().amax(-1)
    torch.testing.assert_close(scales.double() * 127, blocks, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("granularity", [0, ROW, BLOCK])
@pytest.mark.parametrize("kind", [INT8, FLOAT8])
@pytest.mark.parametrize("device", DEVICES)
def test_quantized_results_are_those_of_the_float64_result(device, kind, granularity):
    t = Maker(device, torch.float32)
    x, weight = t(9, 300), t(300)
    static = 0.031 if granularity == 0 else 0.0
    values, _, _, _, scales = torch.ops.normd.normalize(
        x, 1, 1, 1, 1, 1, 1e-6, weight,
        quantization=kind, quantization_scale=granularity, output_scale=static,
    )  # fmt: skip
    wide = torch.nn.functional.rms_norm(x.double(), (300,), weight.double(), 1e-6)
    largest = 127 if kind == INT8 else 448
    if granularity == 0:
        factor = torch.tensor(static, dtype=torch.float64, device=device)
    elif granularity == ROW:
        factor = wide.abs().amax(-1, keepdim=True) / largest
        assert torch.allclose(scales.double(), factor[..., 0], rtol=1e-5)
    else:
        blocks = torch.nn.functional.pad(wide, (0, 84)).view(9, 3, 128).abs().amax(-1) / largest
        assert torch.allclose(scales.double(), blocks, rtol=1e-5)
        factor = blocks.repeat_interleave(128, -1)[:, :300]
    exact = (wide / factor).clamp(-128 if kind == INT8 else -448, largest)
    step = 1.0 if kind == INT8 else (exact.abs().clamp(min=2.0**-6).log2().floor() - 3).exp2()
    assert ((values.double() - exact).abs() <= 0.5 * step + 1e-3 * exact.abs()).all()


def test_other_layouts_are_copied_where_the_profiler_sees_it():
    x = torch.randn(2, 6, 5, 7)
    calls = {
        "dense": (x, 0),
        "channels last": (x.to(memory_format=torch.channels_last), 0),
        "strided": (torch.randn(2, 6, 5, 14)[..., ::2], 1),
    }
    for name, (tensor, copies) in calls.items():
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
            torch.ops.normd.group_norm(tensor, 3)
        found = sum(event.count for event in profile.key_averages() if event.key == "aten::copy_")
        assert found == copies, name


@pytest.mark.parametrize("case", FIRST.values(), ids=str)
def test_compiled_calls_have_no_graph_break(case):
    torch.compiler.reset()
    arguments = case.arguments(Maker("cpu", torch.float32))
    compiled = torch.compile(case.call, fullgraph=True, backend="aot_eager")
    wanted = outputs(case.call(*arguments))
    for y, reference in zip(outputs(compiled(*arguments)), wanted, strict=True):
        assert torch.equal(y, reference)
        assert y.stride() == reference.stride()


def test_threads_are_those_of_pytorch():
    x = torch.randn(64, 8, 32, 32)
    y = torch.ops.normd.group_norm(x, 4)
    threads = torch.get_num_threads()
    try:
        for count in (1, 2, 3):
            torch.set_num_threads(count)
            assert torch.equal(torch.ops.normd.group_norm(x, 4), y)
    finally:
        torch.set_num_threads(threads)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
@pytest.mark.parametrize("shape", [(4, 4096), (3, 1 << 20)], ids=str)
def test_graphs_replay_the_same_bits_on_other_inputs(shape):
    x, weight = torch.randn(shape, device="cuda"), torch.randn(shape[-1], device="cuda")
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        torch.ops.normd.rms_norm(x, 1, 1, weight)
    side.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for size in (48 << 10, 1 << 16, 1 << 20, 1 << 22):  # Replays find no zeros in workspaces.
            torch.full((size,), 255, dtype=torch.uint8, device="cuda")
        y = torch.ops.normd.rms_norm(x, 1, 1, weight)
    for _ in range(3):
        x.copy_(torch.randn(shape))
        y.fill_(777)
        graph.replay()
        assert torch.equal(y, torch.ops.normd.rms_norm(x, 1, 1, weight))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_streams_have_workspaces_of_their_own():
    shape = (3, 1 << 20)  # Rows that several blocks share.
    tensors = [torch.randn(shape, device="cuda") for _ in range(4)]
    wanted = [torch.ops.normd.layer_norm(x, 1, 1) for x in tensors]
    torch.cuda.synchronize()
    streams = [torch.cuda.Stream() for _ in tensors]
    for _ in range(20):
        results = []
        for x, stream in zip(tensors, streams, strict=True):
            with torch.cuda.stream(stream):
                results.append(torch.ops.normd.layer_norm(x, 1, 1))
        torch.cuda.synchronize()
        for y, reference in zip(results, wanted, strict=True):
            assert torch.equal(y, reference)
