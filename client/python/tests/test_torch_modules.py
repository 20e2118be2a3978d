"""The layers of normd.torch, and what puts them into models."""

from __future__ import annotations

import contextlib
import copy
import gc
import pickle
import re

import pytest

torch = pytest.importorskip("torch", minversion="2.10")
normd_torch = pytest.importorskip("normd.torch", exc_type=ImportError)

from torch import nn
from torch.nn import functional

LAYERS = [
    (nn.InstanceNorm1d, (6,), {"affine": True}, (2, 6, 9)),
    (nn.InstanceNorm1d, (6,), {}, (6, 9)),
    (nn.InstanceNorm2d, (6,), {"eps": 1e-3}, (2, 6, 5, 7)),
    (nn.InstanceNorm2d, (6,), {"affine": True, "track_running_stats": True}, (2, 6, 5, 7)),
    (nn.InstanceNorm3d, (6,), {}, (2, 6, 3, 4, 5)),
    (nn.GroupNorm, (3, 6), {}, (2, 6, 5, 7)),
    (nn.GroupNorm, (3, 6), {"affine": False}, (2, 6)),
    (nn.LayerNorm, (7,), {}, (2, 5, 7)),
    (nn.LayerNorm, ((5, 7),), {"bias": False}, (2, 5, 7)),
    (nn.LayerNorm, (7,), {"elementwise_affine": False}, (7,)),
    (nn.RMSNorm, (7,), {}, (2, 5, 7)),
    (nn.RMSNorm, (7,), {"eps": 1e-3, "elementwise_affine": False}, (2, 7)),
    (nn.BatchNorm1d, (6,), {}, (4, 6)),
    (nn.BatchNorm2d, (6,), {"affine": False}, (2, 6, 5, 7)),
    (nn.BatchNorm3d, (6,), {}, (2, 6, 3, 4, 5)),
]


def randomized(module):
    """Its parameters and running statistics are what a model has learnt, not zeros and ones."""
    with torch.no_grad():
        for tensor in [*module.parameters(), *module.buffers()]:
            if tensor.is_floating_point():
                tensor.copy_(torch.rand_like(tensor) + 0.5)
    return module.eval()


def model():
    return randomized(
        nn.Sequential(
            nn.Conv2d(3, 8, 3, bias=False),
            nn.BatchNorm2d(8),
            nn.ReLU(),
            nn.Sequential(nn.Conv2d(8, 8, 3), nn.GroupNorm(2, 8), nn.SiLU(inplace=True)),
            nn.InstanceNorm2d(8, affine=True),
            nn.LeakyReLU(0.3),
            nn.Flatten(2),
            nn.LayerNorm(144),
            nn.GELU(),
            nn.RMSNorm(144),
            nn.GELU(approximate="tanh"),
        )
    )


@pytest.mark.parametrize(("layer", "arguments", "options", "shape"), LAYERS)
def test_layers_are_those_of_pytorch(layer, arguments, options, shape):
    torch.manual_seed(1)
    theirs = randomized(layer(*arguments, **options))
    ours = getattr(normd_torch, layer.__name__)(*arguments, **options).eval()
    ours.load_state_dict(theirs.state_dict())
    x = torch.randn(shape)
    with torch.no_grad():
        torch.testing.assert_close(ours(x), theirs(x))
    assert isinstance(ours, layer)
    assert not any(each.requires_grad for each in ours.parameters())
    ours(x)  # Nothing requires a gradient.
    with pytest.raises(RuntimeError, match="requires a gradient"):
        ours(x.requires_grad_())


@pytest.mark.parametrize("activation", ["relu", "leaky_relu", "silu", "gelu", "gelu_tanh"])
def test_layers_take_an_activation(activation):
    names = {"leaky_relu": "leaky_relu", "gelu_tanh": "gelu"}
    options = {"approximate": "tanh"} if activation == "gelu_tanh" else {}
    x = torch.randn(2, 6, 9)
    expected = getattr(functional, names.get(activation, activation))(
        functional.group_norm(x, 3), **options
    )
    torch.testing.assert_close(normd_torch.GroupNorm(3, 6, activation=activation)(x), expected)
    with pytest.raises(ValueError, match="activation: 'tanh'"):
        normd_torch.GroupNorm(3, 6, activation="tanh")


def test_layers_refuse_what_pytorchs_refuse():
    bad = [
        (normd_torch.LayerNorm(7), (2, 6), ValueError),
        (normd_torch.InstanceNorm2d(6), (2, 5, 4, 4), ValueError),
        (normd_torch.InstanceNorm2d(6), (4, 4), ValueError),
        (normd_torch.BatchNorm2d(6).eval(), (2, 6, 4), ValueError),
        (normd_torch.GroupNorm(3, 6), (2, 8, 4), RuntimeError),
        (normd_torch.BatchNorm1d(6), (2, 6, 4), RuntimeError),
        (normd_torch.InstanceNorm1d(6, track_running_stats=True), (2, 6, 4), RuntimeError),
    ]
    for layer, shape, error in bad:
        with pytest.raises(error), torch.no_grad():
            layer(torch.randn(shape))


@pytest.mark.parametrize("fuse", [False, True])
def test_replaced_models_compute_the_same(fuse):
    torch.manual_seed(2)
    theirs = model()
    ours = copy.deepcopy(theirs)
    report = normd_torch.replace(ours, **({"fuse_activations": True} if fuse else {}))
    assert report.replaced == {
        "1": "BatchNorm2d",
        "3.1": "GroupNorm",
        "4": "InstanceNorm2d",
        "7": "LayerNorm",
        "9": "RMSNorm",
    }
    fused = {"2": "1", "3.2": "3.1", "5": "4", "8": "7", "10": "9"}
    assert report.fused == (fused if fuse else {})
    assert not report.left
    assert ours.state_dict().keys() == theirs.state_dict().keys()
    x = torch.randn(2, 3, 16, 16)
    with torch.inference_mode():
        torch.testing.assert_close(ours(x), theirs(x))
        again = pickle.loads(pickle.dumps(ours))
        assert torch.equal(again(x), ours(x))
    assert str(normd_torch.replace(ours)) == "no norms"  # Nothing is replaced twice.


def test_replaced_models_compile_without_a_graph_break():
    torch.compiler.reset()
    ours = model()
    normd_torch.replace(ours, fuse_activations=True)
    x = torch.randn(2, 3, 16, 16)
    with torch.no_grad():
        compiled = torch.compile(ours, fullgraph=True, backend="aot_eager")
        torch.testing.assert_close(compiled(x), ours(x))


def test_what_is_left_alone_is_told():
    class Own(nn.LayerNorm):
        def forward(self, x):
            return super().forward(x.flip(-1))

    layers = nn.ModuleDict(
        {
            "own": Own(4),
            "trained": nn.BatchNorm1d(4),
            "statistics": nn.BatchNorm1d(4, track_running_stats=False),
            "response": nn.LocalResponseNorm(2),
            "wide": nn.GroupNorm(2, 4).to(torch.float8_e4m3fn),
        }
    )
    report = normd_torch.replace(layers)
    assert not report.replaced
    assert report.left.keys() == set(layers.keys())
    assert "eval()" in report.left["trained"]
    assert "Own, whose forward uses flip" in report.left["own"]
    assert "computes none of normd's norms" in report.left["response"]
    assert "own: left alone" in str(report)
    assert type(layers["own"]) is Own


def test_shared_norms_and_hooks_keep_their_activations():
    norm = nn.GroupNorm(2, 4)
    hooked = nn.GroupNorm(2, 4)
    hooked.register_forward_hook(lambda module, inputs, output: None)
    ours = nn.ModuleList(
        [nn.Sequential(norm, nn.ReLU()), nn.Sequential(norm), nn.Sequential(hooked, nn.ReLU())]
    )
    report = normd_torch.replace(ours, fuse_activations=True)
    assert report.replaced.keys() == {"0.0", "2.0"}
    assert not report.fused
    x = torch.randn(2, 4, 3)
    with torch.no_grad():
        torch.testing.assert_close(ours[0](x), functional.relu(functional.group_norm(x, 2)))


def taps(model, x):
    """The result of every layer, as perceptual losses and feature extractors read them."""
    results = {}

    def walk(sequence, x, prefix):
        for name, layer in sequence.named_children():
            is_sequence = isinstance(layer, nn.Sequential)
            x = walk(layer, x, f"{prefix}{name}.") if is_sequence else layer(x)
            results[prefix + name] = x.clone()
        return x

    walk(model, x, "")
    return results


@torch.no_grad()
def test_replaced_models_have_the_same_result_of_every_layer():
    torch.manual_seed(2)
    theirs = model()
    ours = copy.deepcopy(theirs)
    normd_torch.replace(ours)
    x = torch.randn(2, 3, 16, 16)
    for (name, y), wanted in zip(taps(ours, x).items(), taps(theirs, x).values(), strict=True):
        torch.testing.assert_close(y, wanted, msg=lambda text, name=name: f"{name}: {text}")
    for end in range(1, len(theirs) + 1):
        torch.testing.assert_close(ours[:end](x), theirs[:end](x))
    pair = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU()).eval()
    wanted = pair(x)
    normd_torch.replace(pair)
    fused = nn.utils.fuse_conv_bn_eval(pair[0], pair[1])
    torch.testing.assert_close(pair[2](fused(x)), wanted)


def test_what_is_fused_shows():
    theirs, ours, fused = model(), model(), model()
    normd_torch.replace(ours)
    plain = re.sub(r"(\w+Norm)", r"normd.\1", repr(theirs))
    assert repr(ours) == plain
    normd_torch.replace(fused, fuse_activations=True)
    activations = {
        "1": "'relu'",
        "3.1": "'silu'",
        "4": "'leaky_relu', slope=0.3",
        "7": "'gelu'",
        "9": "'gelu_tanh'",
    }
    for norm, activation in activations.items():
        plain = repr(theirs.get_submodule(norm))
        assert repr(fused.get_submodule(norm)) == f"normd.{plain[:-1]}, activation={activation})"
    for activation, norm in {"2": "1", "3.2": "3.1", "5": "4", "8": "7", "10": "9"}.items():
        identity, plain = fused.get_submodule(activation), theirs.get_submodule(activation)
        assert isinstance(identity, nn.Identity)
        assert repr(identity) == f"Fused({plain!r}, computed by {norm!r})"
    assert repr(pickle.loads(pickle.dumps(fused))) == repr(fused)


def reference_layer(layer, x, y):
    z = functional.linear(x, layer.weight, layer.bias)
    z = functional.layer_norm(z, z.shape[-1:], eps=layer.eps)
    return functional.relu((z + y) * y)


def write_by_numpy(layer):
    layer.weight.detach().numpy()[:] += 1


WRITES = {
    "in place": lambda layer: layer.weight.mul_(-3),
    "bias in place": lambda layer: layer.bias.add_(2),
    "copy_": lambda layer: layer.weight.copy_(torch.randn(48, 32)),
    "data": lambda layer: layer.weight.data.add_(1),
    "data copy_": lambda layer: layer.weight.data.copy_(torch.randn(48, 32)),
    "bias data": lambda layer: layer.bias.data.mul_(-2),
    "new data": lambda layer: setattr(layer.weight, "data", torch.randn(48, 32)),
    "NumPy": write_by_numpy,
    "a view": lambda layer: layer.weight[3:].zero_().sub_(layer.weight[:1].add_(1)),
    "load_state_dict": lambda layer: layer.load_state_dict(
        {"weight": torch.randn(48, 32), "bias": torch.randn(48)}
    ),
    "load_state_dict, assign": lambda layer: layer.load_state_dict(
        {"weight": torch.randn(48, 32), "bias": torch.randn(48)}, assign=True
    ),
    "a new parameter": lambda layer: setattr(
        layer, "weight", nn.Parameter(torch.randn(48, 32), requires_grad=False)
    ),
    "vector_to_parameters": lambda layer: nn.utils.vector_to_parameters(
        torch.randn(48 * 32 + 48), layer.parameters()
    ),
    "to": lambda layer: layer.double().float().weight.mul_(2),
}
UNCOUNTED = {"data", "data copy_", "bias data", "NumPy"}
# PyTorch takes these outside inference mode for inference tensors too.
FREE = UNCOUNTED | {"load_state_dict, assign", "a new parameter"}


class TestLinearNorm:
    def layer(self):
        torch.manual_seed(3)
        return normd_torch.LinearNorm(32, 48, add=True, multiply=True, activation="relu")

    def test_is_linear_norm_add_multiply_activation(self):
        layer = self.layer()
        x, y = torch.randn(3, 5, 32), torch.randn(3, 5, 48)
        torch.testing.assert_close(layer(x, y), reference_layer(layer, x, y))
        assert not layer(x[:0], y[:0]).numel()

    @pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
    @pytest.mark.parametrize("made_in", [torch.no_grad, torch.inference_mode])
    @pytest.mark.parametrize("write", WRITES)
    def test_follows_every_write_to_its_weight(self, write, made_in, mode):
        with made_in():
            layer = self.layer()
        x, y = torch.randn(5, 32), torch.randn(5, 48)
        refused = contextlib.nullcontext()
        if made_in is torch.inference_mode and mode is torch.no_grad and write not in FREE:
            # By PyTorch: the write, or the reference of what was written.
            refused = pytest.raises(RuntimeError, match="nference tensor")
        with refused, mode():
            for _ in range(3):
                layer(x, y)
                before = layer.weight.sum(), layer.bias.sum()
                WRITES[write](layer)
                assert (layer.weight.sum(), layer.bias.sum()) != before
                torch.testing.assert_close(layer(x, y), reference_layer(layer, x, y))

    @pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
    @pytest.mark.parametrize("write", WRITES)
    def test_once_prepared_it_refuses_a_change_or_keeps_to_prepare(self, write, mode):
        """Or computes with the new weight: never with a mixture, nor with an older one."""
        layer = self.layer()
        x, y = torch.randn(5, 32), torch.randn(5, 48)
        with mode():
            layer.prepare()
            prepared = reference_layer(layer, x, y)
            WRITES[write](layer)
            if write in UNCOUNTED:
                torch.testing.assert_close(layer(x, y), prepared)
            elif layer._prepared is None:
                torch.testing.assert_close(layer(x, y), reference_layer(layer, x, y))
            else:
                with pytest.raises(RuntimeError, match="weight: changed since prepare"):
                    layer(x, y)
            layer.prepare()
            torch.testing.assert_close(layer(x, y), reference_layer(layer, x, y))

    def test_half_of_it_computes_as_it(self):
        layer = self.layer()
        x, y = torch.randn(5, 32), torch.randn(5, 48)
        layer.prepare()
        with pytest.raises(RuntimeError, match=r"x\.dtype: torch\.float16, wanted torch\.float32"):
            layer(x.half(), y.half())
        half = copy.deepcopy(layer).half()
        result = half(x.half(), y.half())
        torch.testing.assert_close(result.float(), layer(x, y), rtol=0.02, atol=0.02)

    def test_copies_live_on_their_own(self):
        layer = self.layer()
        x, y = torch.randn(5, 32), torch.randn(5, 48)
        expected = layer(x, y)
        other = pickle.loads(pickle.dumps(layer))
        assert torch.equal(other(x, y), expected)
        del layer
        gc.collect()
        assert torch.equal(other(x, y), expected)

    def test_compiles_once_it_is_prepared(self):
        torch.compiler.reset()
        layer = self.layer()
        x, y = torch.randn(5, 32), torch.randn(5, 48)
        layer.prepare()
        compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
        assert torch.equal(compiled(x, y), layer(x, y))

    def test_refuses_bad_calls(self):
        layer = self.layer()
        x, y = torch.randn(5, 32), torch.randn(5, 48)
        for arguments, part in (
            ((x,), "y: None"),
            ((x[:, :4], y), "x.shape: [5, 4]"),
            ((x, y[:2]), "y.shape: [2, 48]"),
            ((x, y.half()), "x's dtype"),
        ):
            with pytest.raises(RuntimeError) as error:
                layer(*arguments)
            assert part in str(error.value)
        with pytest.raises(ValueError, match=r"dtype: torch\.float64"):
            layer(x.double(), y.double())
        with pytest.raises(ValueError, match="precision"):
            normd_torch.LinearNorm(2, 2, precision="float8")
        operator = torch.ops.normd.linear_norm
        options = (32, 48, 1e-5, True, True, 1, 0.01, 0)
        for prepared in (torch.tensor([10**9]), torch.zeros(1), torch.zeros(0).long()):
            with pytest.raises(RuntimeError, match="prepared"):
                operator(x, y, prepared, *options)
        layer.prepare()
        with pytest.raises(RuntimeError, match="prepared"):  # Another eps.
            operator(x, y, layer._prepared.weight, 32, 48, 1e-3, True, True, 1, 0.01, 0)

    def test_opcheck(self):
        layer = self.layer()
        layer.prepare()
        x, y = torch.randn(5, 32), torch.randn(5, 48)
        options = (32, 48, 1e-5, True, True, 1, 0.01, 0)
        arguments = (x, y, layer._prepared.weight, *options)
        torch.library.opcheck(torch.ops.normd.linear_norm.default, arguments)
        weight = (layer.weight, layer.bias, 1, 1e-5, True, True, 1, 0.01, 0)
        prepare = torch.ops.normd.linear_norm_prepare.default
        torch.library.opcheck(prepare, weight, test_utils="test_schema")
        out = torch.empty(5, 48)
        torch.library.opcheck(torch.ops.normd.linear_norm.out, arguments, {"out": out})


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
        assert torch.equal(torch.compile(layer, fullgraph=True, backend="eager")(x), y)
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


def test_layers_take_pytorchs_arguments_by_position_and_no_others():
    assert normd_torch.GroupNorm(3, 6, 1e-3, False).eps == 1e-3
    assert normd_torch.LayerNorm(4, 1e-3, True, False).bias is None
    assert normd_torch.RMSNorm(4, 1e-3, False).weight is None
    assert normd_torch.BatchNorm2d(4, 1e-3, None, False).momentum is None
    double = normd_torch.InstanceNorm1d(4, 1e-3, 0.2, True, False, "cpu", torch.float64)
    assert double.weight.dtype == torch.float64
    for layer in (normd_torch.LayerNorm, normd_torch.BatchNorm1d):
        with pytest.raises(TypeError, match="epsilon"):
            layer(4, epsilon=3)


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
