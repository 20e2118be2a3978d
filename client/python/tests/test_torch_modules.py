"""The layers of normd.torch, and what puts them into models."""

from __future__ import annotations

import copy
import inspect
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


@pytest.mark.parametrize(("layer", "arguments", "options", "shape"), LAYERS)
@torch.no_grad()
def test_every_layer_adds_with_its_activation(layer, arguments, options, shape):
    plain = randomized(getattr(normd_torch, layer.__name__)(*arguments, **options))
    with_silu = getattr(normd_torch, layer.__name__)(*arguments, **options, activation="silu")
    with_silu.eval().load_state_dict(plain.state_dict())
    x, residual = torch.randn(2, *shape).unbind()
    wanted = plain(x + residual)
    for norm, result in ((plain, wanted), (with_silu, functional.silu(wanted))):
        y, total = norm.add(x, residual)
        assert torch.equal(total, x + residual)
        torch.testing.assert_close(y, result)


class Half(nn.Module):
    def forward(self, tensor):
        return tensor / 2


@pytest.mark.parametrize("compiled", [False, True])
@torch.no_grad()
def test_layers_take_parameters_from_wherever_they_are(compiled):
    torch.compiler.reset()
    ours, x = normd_torch.LayerNorm(7), torch.randn(5, 7)
    run = torch.compile(ours, backend="aot_eager", fullgraph=True) if compiled else ours
    plain = functional.layer_norm(x, (7,))
    torch.testing.assert_close(run(x), plain)
    ours.weight = nn.Parameter(torch.full((7,), 3.0), requires_grad=False)
    torch.testing.assert_close(run(x), 3 * plain)
    called = torch.func.functional_call(ours, {"weight": torch.full((7,), 5.0)}, (x,))
    torch.testing.assert_close(called, 5 * plain)
    nn.utils.parametrize.register_parametrization(ours, "weight", Half())
    torch.testing.assert_close(run(x), 1.5 * plain)
    nn.utils.parametrize.remove_parametrizations(ours, "weight", leave_parametrized=False)
    del ours.bias
    ours.register_buffer("bias", torch.ones(7))
    torch.testing.assert_close(run(x), 3 * plain + 1)
    del ours.weight
    ours.weight = torch.full((7,), 2.0)
    torch.testing.assert_close(run(x), 2 * plain + 1)


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
        (normd_torch.InstanceNorm2d(6, affine=True), (2, 5, 4, 4), ValueError),
        (normd_torch.InstanceNorm2d(6), (4, 4), ValueError),
        (normd_torch.BatchNorm2d(6).eval(), (2, 6, 4), ValueError),
        (normd_torch.GroupNorm(3, 6), (2, 8, 4), RuntimeError),
        (normd_torch.BatchNorm1d(6), (2, 6, 4), RuntimeError),
        (normd_torch.InstanceNorm1d(6, track_running_stats=True), (2, 6, 4), RuntimeError),
    ]
    for layer, shape, error in bad:
        with pytest.raises(error), torch.no_grad():
            layer(torch.randn(shape))


@pytest.mark.parametrize("kind", ["InstanceNorm1d", "InstanceNorm2d", "InstanceNorm3d"])
@torch.no_grad()
def test_instance_norm_without_parameters_takes_any_channels(kind):
    shape = (2, 3, 4, 5, 6)[: int(kind[-2]) + 2]
    for x in (torch.randn(shape), torch.randn(shape[1:])):
        with pytest.warns(UserWarning, match="num_features"):
            wanted = getattr(nn, kind)(64)(x)
        torch.testing.assert_close(getattr(normd_torch, kind)(64)(x), wanted)


@pytest.mark.parametrize(("layer", "arguments", "options", "shape"), LAYERS)
@torch.no_grad()
def test_layers_take_their_input_by_pytorchs_name(layer, arguments, options, shape):
    theirs, x = randomized(layer(*arguments, **options)), torch.randn(shape)
    name = next(iter(inspect.signature(theirs.forward).parameters))
    wanted = theirs(**{name: x})
    made = getattr(normd_torch, layer.__name__)(*arguments, **options).eval()
    made.load_state_dict(theirs.state_dict())
    torch.testing.assert_close(made(**{name: x}), wanted)
    normd_torch.replace(theirs)
    torch.testing.assert_close(theirs(**{name: x}), wanted)


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
    assert str(normd_torch.replace(ours)) == "no further norms"  # Nothing is replaced twice.


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


def synchronized(model):
    return nn.SyncBatchNorm.convert_sync_batchnorm(model).eval()


def wrapped(model):
    model[1] = nn.Sequential(model[1])
    return model


def copied(model):
    model[1] = copy.deepcopy(model[1])
    return model


def moved(model):
    return model.insert(0, nn.Identity())


@pytest.mark.parametrize("change", [synchronized, wrapped, copied, moved, lambda model: model[:]])
@torch.no_grad()
def test_fused_activations_are_computed_once_whatever_becomes_of_their_norm(change):
    theirs = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.SiLU()).eval()
    ours, x = copy.deepcopy(theirs), torch.randn(2, 3, 5, 5)
    assert normd_torch.replace(ours, fuse_activations=True).fused == {"2": "1"}
    wanted, ours = change(theirs)(x), change(ours)
    torch.compiler.reset()
    for each in (ours, copy.deepcopy(ours), pickle.loads(pickle.dumps(ours))):
        torch.testing.assert_close(each(x), wanted)
        compiled = torch.compile(each, backend="eager", fullgraph=True)
        torch.testing.assert_close(compiled(x), wanted)
    normd_torch.restore(ours)
    torch.testing.assert_close(ours(x), wanted)


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
