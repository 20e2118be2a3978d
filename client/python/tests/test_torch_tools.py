"""Models with normd's layers in PyTorch's tools: torch.fx, torch.onnx, torch.jit, and layouts."""

from __future__ import annotations

import copy
import importlib
import pickle

import pytest

torch = pytest.importorskip("torch", minversion="2.10")
normd_torch = pytest.importorskip("normd.torch", exc_type=ImportError)

from torch import nn
from torch.nn import functional
from torch_cases import CASES, Maker


def model():
    torch.manual_seed(3)
    norms = nn.BatchNorm2d(6), nn.GroupNorm(3, 6), nn.InstanceNorm2d(6, affine=True)
    steps = [nn.Conv2d(3, 6, 3), *norms, nn.ReLU(), nn.Flatten(2), nn.LayerNorm(36), nn.RMSNorm(36)]
    made = nn.Sequential(*steps).eval().requires_grad_(False)
    for parameter in [*made.parameters(), made[1].running_mean]:
        parameter.add_(torch.rand_like(parameter))
    return made


X = torch.randn(2, 3, 8, 8)


def own_layers():
    """Layers that are made, not replaced."""
    layer = normd_torch.LinearNorm(36, 36)
    layer.prepare()
    return nn.Sequential(nn.Flatten(2), normd_torch.LayerNorm(64), normd_torch.RMSNorm(64, 1e-6))


@pytest.mark.parametrize("fuse", [False, True])
def test_fx_keeps_layers_as_they_are(fuse):
    made = model()
    normd_torch.replace(made, fuse_activations=fuse)
    for each in (made, copy.deepcopy(made), pickle.loads(pickle.dumps(made)), own_layers()):
        traced = torch.fx.symbolic_trace(each)
        called = [node.target for node in traced.graph.nodes if node.op == "call_module"]
        assert called == [name for name, _ in each.named_children()]
        assert torch.equal(traced(X), each(X))
    normd_torch.restore(made)
    assert torch.fx.symbolic_trace(made).code == torch.fx.symbolic_trace(model()).code


def test_feature_extractors_find_layers_by_name():
    models = pytest.importorskip("torchvision.models")
    extraction = pytest.importorskip("torchvision.models.feature_extraction")
    names = {}
    torch.manual_seed(3)
    resnet = models.resnet18(weights=None).eval().requires_grad_(False)
    x = torch.randn(1, 3, 64, 64)
    wanted = ["layer1.0.bn1", "layer2.1.bn2", "layer4"]
    eager = extraction.create_feature_extractor(resnet, wanted)(x)
    names = extraction.get_graph_node_names(resnet)
    normd_torch.replace(resnet)
    assert extraction.get_graph_node_names(resnet) == names
    ours = extraction.create_feature_extractor(resnet, wanted)(x)
    for name in wanted:
        torch.testing.assert_close(ours[name], eager[name], atol=1e-3, rtol=1e-3)


def test_scripts_are_refused_in_words():
    made = model()
    normd_torch.replace(made)
    for each in (made, made[1], normd_torch.LayerNorm(4), normd_torch.LinearNorm(4, 4)):
        with pytest.raises(
            RuntimeError, match=r"torch.jit.script, wanted torch.compile, torch.exp"
        ):
            torch.jit.script(each)
    normd_torch.restore(made)
    assert torch.equal(torch.jit.script(made)(X), made(X))


NORMS = ("instance_norm", "batch_norm", "group_norm", "layer_norm", "rms_norm")
OPERATORS = (*NORMS, "add_layer_norm", "add_rms_norm")
DECOMPOSED = [each for each in CASES if each.operator in OPERATORS]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("case", DECOMPOSED, ids=str)
@torch.no_grad()
def test_decompositions_compute_the_same(case, dtype):
    arguments = case.arguments(Maker("cpu", dtype))
    operator = getattr(torch.ops.normd, case.operator).default
    decomposed = normd_torch.decompositions()[operator](*arguments)
    limit = {torch.float32: 1e-5, torch.float64: 1e-10, torch.bfloat16: 2.0**-6}[dtype]
    for ours, theirs in zip(*map(_tuple, (operator(*arguments), decomposed)), strict=True):
        assert ours.dtype == theirs.dtype
        assert strides(ours) == strides(theirs)
        torch.testing.assert_close(ours, theirs, atol=limit, rtol=limit)


def strides(x):
    """Those that say where elements lie."""
    return [stride for size, stride in zip(x.shape, x.stride(), strict=True) if size > 1]


def _tuple(result):
    return result if isinstance(result, tuple) else (result,)


@pytest.mark.parametrize("activation", [*normd_torch._checks.ACTIVATIONS])
@torch.no_grad()
def test_decompositions_have_the_activation(activation):
    x = torch.randn(4, 6)
    layer = normd_torch.LayerNorm(6, activation=activation)
    code = normd_torch._checks.activation_code(activation)
    table = normd_torch.decompositions()
    y = table[torch.ops.normd.layer_norm.default](x, 1, 1, None, None, 1e-5, code, 0.01)
    torch.testing.assert_close(y, layer(x))


class Chain(torch.nn.Module):
    """Layers of every kind; the last takes groups of 65,536 elements, or one less."""

    def __init__(self, side):
        super().__init__()
        self.batch = normd_torch.BatchNorm2d(4).eval()
        self.instance = normd_torch.InstanceNorm2d(4, affine=True)
        self.layer = normd_torch.AddLayerNorm(side, activation="relu")
        self.rms = normd_torch.RMSNorm(4, axis=1, weight_offset=1.0)
        self.group = normd_torch.GroupNorm(2, 4, activation="silu")

    def forward(self, x):
        y, total = self.layer(self.batch(x), self.instance(x))
        return self.group(self.rms.add(y, total)[0])


def operators_of(graph):
    return {node.target._schema.name for node in graph.nodes if hasattr(node.target, "_schema")}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@torch.no_grad()
def test_inductor_sees_into_compiled_layers(dtype):
    run_and_get_code = importlib.import_module("torch._inductor.utils").run_and_get_code
    torch.compiler.reset()
    limit = {torch.float32: 1e-5, torch.bfloat16: 2.0**-4}[dtype]
    layers = Chain(10).to(dtype)
    compiled = torch.compile(layers, fullgraph=True, dynamic=True)
    for i, rows in enumerate((3, 7)):
        x = torch.randn(2, 4, rows, 10, dtype=dtype)
        if i == 0:
            y, code = run_and_get_code(compiled, x)
            assert "torch.ops.normd" not in "".join(code)
        else:
            y = compiled(x)
        torch.testing.assert_close(y, layers(x), atol=limit, rtol=limit)
    torch.compiler.reset()


@pytest.mark.parametrize("rows", [511, 512, 513])
@torch.no_grad()
def test_compiled_layers_keep_the_operator_for_long_groups(rows):
    graphs = []

    def backend(module, inputs):
        graphs.append(operators_of(module.graph))
        return module.forward

    torch.compiler.reset()
    layers, x = Chain(64), torch.randn(1, 4, rows, 64)
    y = torch.compile(layers, fullgraph=True, backend=backend)(x)
    torch.testing.assert_close(y, layers(x), atol=1e-5, rtol=1e-5)
    assert graphs == [{"normd::group_norm"} if rows > 512 else set()]


def of_layout(shape, layout):
    """x of that shape, row-major, channels last, or cut from a wider tensor."""
    if layout == "cut":
        return torch.randn(*shape[:-1], shape[-1] + 3)[..., 1:-2]
    x = torch.randn(shape)
    return x.movedim(1, -1).contiguous().movedim(-1, 1) if layout == "last" else x


LAYERS = {
    "instance": lambda: normd_torch.InstanceNorm2d(4, affine=True),
    "batch": lambda: normd_torch.BatchNorm2d(4).eval(),
    "group": lambda: normd_torch.GroupNorm(4, 4, activation="silu"),
    "layer": lambda: normd_torch.LayerNorm(4, axis=1),
    "layer, apart": lambda: normd_torch.LayerNorm((4, 1), axis=(1, 3)),
    "rms": lambda: normd_torch.RMSNorm(4, eps=1e-6, axis=1),
}


@pytest.mark.parametrize("layout", ["first", "last", "cut"])
@pytest.mark.parametrize("layer", LAYERS)
@torch.no_grad()
def test_compiled_layers_give_what_eager_ones_do_for_every_layout(layer, layout):
    torch.compiler.reset()
    made = LAYERS[layer]()
    compiled = torch.compile(made, fullgraph=True, backend="eager")
    for shape in ((2, 4, 5, 1), (3, 4, 1, 1), (1, 4, 6, 1), (2, 4, 0, 1), (0, 4, 3, 1)):
        x = of_layout(shape, layout)
        y, wanted = compiled(x), made(x)
        assert strides(y) == strides(wanted), (shape, x.stride())
        torch.testing.assert_close(y, wanted, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("layer", LAYERS)
def test_compiled_layers_refuse_what_eager_ones_do(layer):
    x = torch.randn(2, 4, 5, 1)
    for wrong in ("x", "eps", "gradient"):
        torch.compiler.reset()
        made, given = LAYERS[layer](), x
        if wrong == "x":
            given = x.int()
        elif wrong == "eps":
            made.eps = -1.0
        else:
            given = x.clone().requires_grad_()
        messages = []
        for run in (made, torch.compile(made, fullgraph=True, backend="eager")):
            with pytest.raises(RuntimeError) as raised:
                run(given).sum().backward()
            messages.append(str(raised.value))
        if wrong != "gradient":
            assert messages[0].split(": ", 1)[1].splitlines()[0] in messages[1]


@pytest.mark.parametrize("strict", [False, True])
@torch.no_grad()
def test_exported_layers_keep_the_operators_for_every_size(strict):
    layers, x = Chain(10), torch.randn(2, 4, 3, 10)
    rows = torch.export.Dim("rows")
    program = torch.export.export(layers, (x,), dynamic_shapes=({2: rows},), strict=strict)
    kept = {name for name in operators_of(program.graph) if name.startswith("normd::")}
    names = ("batch_norm", "instance_norm", "add_layer_norm", "add_rms_norm", "group_norm")
    assert kept == {f"normd::{name}" for name in names}
    for each in (x, torch.randn(2, 4, 4000, 10)):
        assert torch.equal(program.module()(each), layers(each))


@torch.no_grad()
def test_onnx_has_operators_of_its_own(tmp_path):
    runtime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    made = model()
    wanted = made(X)
    normd_torch.replace(made, fuse_activations=True)
    path = tmp_path / "model.onnx"
    torch.onnx.export(made, (X,), path, dynamo=True, verbose=False)
    y = runtime.InferenceSession(path).run(None, {"input": X.numpy()})[0]
    torch.testing.assert_close(torch.from_numpy(y), wanted, atol=1e-4, rtol=1e-4)


@torch.no_grad()
def test_nested_tensors_and_quantized_modules_are_told():
    nested = torch.nested.nested_tensor([torch.randn(2, 4), torch.randn(3, 4)])
    with pytest.raises((RuntimeError, NotImplementedError), match=r"[Nn]ested"):
        normd_torch.layer_norm(nested, 4)
    with pytest.raises((RuntimeError, NotImplementedError), match=r"[Nn]ested"):
        normd_torch.LayerNorm(4)(nested)
    quantized = torch.ao.nn.quantized.LayerNorm(
        4, nn.Parameter(torch.ones(4)), nn.Parameter(torch.zeros(4)), 1.0, 0
    )
    assert normd_torch.replace(quantized).left == {"": "quantized"}
    x = torch.quantize_per_tensor(torch.randn(2, 4), 0.1, 0, torch.quint8)
    with pytest.raises((RuntimeError, NotImplementedError), match=r"quint8|Quantized"):
        normd_torch.layer_norm(x, 4)


class LayerNorm2d(nn.LayerNorm):
    """As torchvision's and timm's."""

    def forward(self, x):
        x = x.permute(0, 2, 3, 1)
        x = functional.layer_norm(x, self.normalized_shape, self.weight, self.bias, self.eps)
        return x.permute(0, 3, 1, 2)


class Computed2d(nn.LayerNorm):
    """The same by hand, whose result is row-major."""

    def forward(self, x):
        mean = x.mean(1, keepdim=True)
        var = (x - mean).pow(2).mean(1, keepdim=True)
        x = (x - mean) / torch.sqrt(var + self.eps)
        return self.weight[:, None, None] * x + self.bias[:, None, None]


@pytest.mark.parametrize("kind", [LayerNorm2d, Computed2d])
@pytest.mark.parametrize(
    "shape", [(2, 6, 5, 7), (1, 6, 1, 7), (2, 6, 1, 1), (2, 1, 5, 7), (2, 256, 2, 3)]
)
@torch.no_grad()
def test_the_next_convolution_gets_the_layout_that_eager_gives_it(kind, shape):
    eager = kind(shape[1])
    ours = copy.deepcopy(eager)
    normd_torch.replace(ours)
    # By hand, one weight is broadcast to any number of channels.
    assert isinstance(ours, normd_torch.LayerNorm) == (kind is LayerNorm2d or shape[1] > 1)
    for x in (torch.randn(shape), torch.randn(shape).to(memory_format=torch.channels_last)):
        y, wanted = ours(x), eager(x)
        torch.testing.assert_close(y, wanted)
        for layout in (torch.contiguous_format, torch.channels_last):
            assert y.is_contiguous(memory_format=layout) == wanted.is_contiguous(
                memory_format=layout
            )
    normd_torch.restore(ours)
    assert "_channels_last" not in vars(ours)
