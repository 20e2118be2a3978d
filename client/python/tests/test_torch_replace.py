"""normd.torch.replace on norms that are not PyTorch's, and restore."""

from __future__ import annotations

import copy
import functools
import itertools
import pickle

import pytest

torch = pytest.importorskip("torch", minversion="2.10")
normd_torch = pytest.importorskip("normd.torch", exc_type=ImportError)

from torch import nn
from torch.nn import functional
from torch_norms import (
    CohereNorm,
    DimensionNorm,
    DimensionNormAct,
    EpsOutsideNorm,
    Float16Norm,
    FormatNorm,
    FrozenNorm,
    GateFirstNorm,
    GateLastNorm,
    GemmaNorm,
    LayerNorm2d,
    LlamaNorm,
    OneGainNorm,
    SequenceNorm,
    ShapeNorm,
    T5Norm,
    ThirdFromLastNorm,
    VarianceNorm,
    WeightlessNorm,
)

from normd.torch import _adapters

NORMS = [
    (LlamaNorm(), (3, 5, 16), "RMSNorm"),
    (T5Norm(), (3, 16), "RMSNorm"),
    (GemmaNorm(), (3, 16), "RMSNorm"),
    (CohereNorm(), (2, 3, 16), "LayerNorm"),
    (WeightlessNorm(), (2, 3, 24), "WeightlessRMSNorm"),
    (LayerNorm2d(16), (2, 16, 5, 7), "LayerNorm"),
    (SequenceNorm(16), (2, 16, 5), "LayerNorm"),
    (FrozenNorm(), (2, 16, 5, 7), "FrozenBatchNorm"),
    (GateFirstNorm(), (3, 16), "GatedRMSNorm"),
    (GateLastNorm(), (3, 16), "GatedRMSNorm"),
]


def inputs_of(norm, shape):
    count = 2 if isinstance(norm, GateFirstNorm | GateLastNorm) else 1
    return [torch.randn(shape) for _ in range(count)]


@pytest.mark.parametrize(("norm", "shape", "layer"), NORMS, ids=lambda each: type(each).__name__)
@torch.no_grad()
def test_forms_are_recognised_and_restored(norm, shape, layer):
    norm = copy.deepcopy(norm).eval()
    kind, before, state = type(norm), repr(norm), norm.state_dict()
    attributes = dict(norm.__dict__)
    x = inputs_of(norm, shape)
    wanted = norm(*x)
    report = normd_torch.replace(norm)
    assert report.replaced == {"": layer}
    assert str(report) == f"the model itself: {layer}"
    assert repr(norm).startswith(f"normd.{layer}(")
    assert f"in place of {kind.__name__}" in repr(norm)
    assert isinstance(norm, kind)
    torch.testing.assert_close(norm(*x), wanted)
    assert norm.state_dict().keys() == state.keys()
    for again in (copy.deepcopy(norm), pickle.loads(pickle.dumps(norm))):
        assert type(again) is type(norm)
        assert torch.equal(again(*x), norm(*x))
    compiled = torch.compile(norm, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(*x), norm(*x))
    assert not normd_torch.replace(norm).replaced
    assert normd_torch.restore(norm) == [""]
    assert type(norm) is kind
    assert repr(norm) == before
    assert norm.__dict__.keys() - {"_is_torch_compile"} == attributes.keys()
    assert torch.equal(norm(*x), wanted)


@pytest.mark.parametrize(("norm", "shape", "layer"), NORMS, ids=lambda each: type(each).__name__)
@pytest.mark.parametrize(
    "names", [("hidden_states", "gate"), ("weight", "y"), ("dtype", "x"), ("name", "norm")]
)
@torch.no_grad()
def test_inputs_keep_the_names_that_the_norm_gives_them(norm, shape, layer, names):
    """Also those that the layer's forward has for something else."""
    x, ours = inputs_of(norm, shape), copy.deepcopy(norm)
    parameters = ", ".join(names[: len(x)])
    members = {"Named": None}
    exec(
        f"def forward(self, {parameters}):\n    return super(Named, self).forward({parameters})",
        members,
    )
    named = type("NamedNorm", (type(norm),), {"forward": members["forward"]})
    members["Named"] = ours.__class__ = named
    by_name = dict(zip(names, x, strict=False))
    wanted = ours(**by_name)

    def adapt(_):
        return normd_torch.Adapted(made.layer, inputs=made.inputs, **made.attributes)

    made = _adapters.adapt(copy.deepcopy(norm), "", None)
    report = normd_torch.replace(ours, adapters={named: adapt})
    assert report.replaced == {"": layer}
    torch.testing.assert_close(ours(**by_name), wanted)
    assert torch.equal(ours(*x), ours(**by_name))
    torch.compiler.reset()
    compiled = torch.compile(ours, fullgraph=True, backend="eager")
    torch.testing.assert_close(compiled(**by_name), wanted)
    with pytest.raises(TypeError, match="unexpected keyword"):
        ours(*x, other=1)


@torch.no_grad()
def test_attributes_that_the_norm_does_not_read_change_nothing():
    norm = LlamaNorm().eval()
    normd_torch.replace(norm)
    kind, x = type(norm), torch.randn(3, 16)
    wanted = norm(x)
    norm.calls = 0

    def count(module, _):
        module.calls += 1

    norm.register_forward_pre_hook(count)
    norm.variance_epsilon = float(repr(norm.variance_epsilon))
    norm.train()
    assert torch.equal(norm(x), wanted)
    assert type(norm) is kind
    assert norm.calls == 1
    norm.variance_epsilon = 1.0
    assert type(norm) is not kind
    assert not torch.allclose(norm(x), wanted)


NEAR = [OneGainNorm(), ThirdFromLastNorm(6), LayerNorm2d(6), LlamaNorm(6), WeightlessNorm()]
NEAR += [DimensionNorm(dim) for dim in (0, 1, 2, 3, -1, -2, -3)] + [T5Norm(1), VarianceNorm(6)]


@pytest.mark.parametrize("norm", NEAR, ids=lambda each: f"{type(each).__name__}-{vars(each)}"[:60])
@torch.no_grad()
def test_norms_compute_the_same_for_tensors_of_every_rank(norm):
    """Replaced or not: where the norm's own forward gives a result, that is the result."""
    ours = copy.deepcopy(norm)
    normd_torch.replace(ours)
    for rank in range(1, 6):
        for shape in itertools.product((1, 3, 6), repeat=rank):
            x = torch.randn(shape)
            try:
                wanted = norm(x)
            except (RuntimeError, IndexError):
                continue
            if wanted.shape == x.shape:
                torch.testing.assert_close(ours(x), wanted)
                if hasattr(ours, "add"):
                    torch.testing.assert_close(ours.add(x, x)[0], norm(x + x))


@pytest.mark.parametrize("size", [2, 3, 5, 16, 768, 8192, 131072])
def test_a_variance_over_one_less_is_left(size):
    ours, left = VarianceNorm(size), VarianceNorm(size)
    left.normalized_shape = 1
    assert normd_torch.replace(ours).replaced == {"": "LayerNorm"}
    assert "computes none of normd's norms" in normd_torch.replace(left).left[""]


def settings():
    """[(a norm, a tensor, an attribute that it has, another value)]"""
    norms = [(norm, inputs_of(norm, shape)) for norm, shape, _ in NORMS]
    norms += [
        (FormatNorm(), [torch.randn(3, 16, 16, 16)]),
        (NormAct(nn.SiLU()), [torch.randn(2, 8)]),
    ]
    norms += [(nn.GroupNorm(2, 8), [torch.randn(2, 8, 8)])]
    norms += [(kind(8), [torch.randn(2, 8, 8)]) for kind in (nn.LayerNorm, nn.BatchNorm1d)]
    for norm, x in norms:
        for name in (*vars(norm), *vars(type(norm))):
            value = getattr(norm, name)
            if name.startswith("_") or isinstance(value, bool):
                continue
            if isinstance(value, int | float):
                yield norm, x, name, 0.5 if isinstance(value, float) else 2 * value
            elif isinstance(value, str):
                yield norm, x, name, "channels_last"
    yield NormAct(nn.SiLU()), [torch.randn(2, 8)], "act", nn.Tanh()
    yield NormAct(nn.Identity()), [torch.randn(2, 8)], "act", nn.Tanh()
    yield LlamaNorm(16), [torch.randn(3, 8)], "weight", nn.Parameter(torch.rand(8))


@torch.no_grad()
def test_attributes_that_are_set_after_replace_are_used():
    seen = set()
    for norm, x, name, value in settings():
        theirs = copy.deepcopy(norm).eval()
        for fuse in (False, True):
            ours = copy.deepcopy(theirs)
            replaced = normd_torch.replace(ours, fuse_activations=fuse).replaced
            assert replaced
            setattr(ours, name, value)
            changed = copy.deepcopy(theirs)
            setattr(changed, name, value)
            seen.add((type(norm).__name__, name))
            try:
                wanted = changed(*x)
            except (RuntimeError, ValueError):
                continue
            torch.testing.assert_close(ours(*x), wanted)
            normd_torch.restore(ours)
            assert type(ours) is type(norm)
            assert torch.equal(ours(*x), wanted)
    assert {("LlamaNorm", "variance_epsilon"), ("FormatNorm", "data_format")} <= seen
    assert {("WeightlessNorm", "eps"), ("GateFirstNorm", "group_size"), ("NormAct", "act")} <= seen


class Doubled(nn.Module):
    def forward(self, tensor):
        return 2 * tensor


@pytest.mark.parametrize("norm", [LlamaNorm(8), T5Norm(8), nn.LayerNorm(8), nn.GroupNorm(2, 8)])
@torch.no_grad()
def test_norms_parametrized_after_replace_are_restored(norm):
    theirs, ours, x = copy.deepcopy(norm), copy.deepcopy(norm), torch.randn(3, 8)
    wanted = norm(x)
    normd_torch.replace(ours)
    for each in (theirs, ours):
        nn.utils.parametrize.register_parametrization(each, "weight", Doubled())
    torch.testing.assert_close(ours(x), theirs(x))
    assert normd_torch.restore(ours) == [""]
    assert torch.equal(ours(x), theirs(x))
    assert repr(ours) == repr(theirs)
    nn.utils.parametrize.remove_parametrizations(ours, "weight", leave_parametrized=False)
    assert type(ours) is type(norm)
    assert torch.equal(ours(x), wanted)


@torch.no_grad()
def test_parts_are_restored_with_their_activations():
    def make():
        return nn.Sequential(
            nn.Sequential(nn.LayerNorm(8), nn.GELU()),
            nn.Sequential(nn.LayerNorm(8), nn.LeakyReLU(0.3), nn.GroupNorm(2, 8), nn.SiLU()),
            NormAct(nn.SiLU()),
        ).eval()

    x, whole = torch.randn(3, 8), make()
    wanted, before = whole(x), repr(whole)
    names = [name for name, _ in whole.named_modules()]
    for count in (1, 2):
        for parts in itertools.combinations(names, count):
            model = copy.deepcopy(whole)
            assert len(normd_torch.replace(model, fuse_activations=True).fused) == 4
            for part in parts:
                normd_torch.restore(model.get_submodule(part))
                torch.testing.assert_close(model(x), wanted)
                torch.testing.assert_close(copy.deepcopy(model)(x), wanted)
            if parts in {("0.0",), ("1.1",)}:
                torch.compiler.reset()
                compiled = torch.compile(model, fullgraph=True, backend="eager")
                torch.testing.assert_close(compiled(x), wanted)
            normd_torch.restore(model)
            assert repr(model) == before
            assert torch.equal(model(x), wanted)
        sliced = copy.deepcopy(whole)
        normd_torch.replace(sliced, fuse_activations=True)
        normd_torch.restore(sliced[1][1:])
        torch.testing.assert_close(sliced(x), wanted)


@pytest.mark.parametrize("kind", [LlamaNorm, T5Norm, GemmaNorm, FrozenNorm])
@torch.no_grad()
def test_results_have_the_type_that_the_norm_gives_them(kind):
    theirs = kind().eval()
    ours = copy.deepcopy(theirs)
    normd_torch.replace(ours)
    types = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
    for weight, dtype in itertools.product(types, types):
        theirs, ours = theirs.to(weight), ours.to(weight)
        x = torch.randn((3, 16, 2, 2) if kind is FrozenNorm else (3, 16)).to(dtype)
        wanted, y = theirs(x), ours(x)
        assert y.dtype == wanted.dtype
        torch.testing.assert_close(y, wanted, rtol=0.02, atol=0.05)


@torch.no_grad()
def test_without_a_gate_or_with_one_of_another_type_the_norms_own_forward_computes():
    theirs = GateFirstNorm()
    ours = copy.deepcopy(theirs)
    normd_torch.replace(ours)
    x = torch.randn(3, 16)
    assert torch.equal(ours(x), theirs(x))
    assert torch.equal(ours(x, x.half()), theirs(x, x.half()))


def test_what_computes_something_else_is_left_with_the_reason():
    model = nn.ModuleDict(
        {
            "other": EpsOutsideNorm(),
            "float16": Float16Norm(),
            "shape": ShapeNorm(),
            "hooked": LlamaNorm(),
            "hooked_too": nn.LayerNorm(4),
        }
    )
    model["hooked"].forward = model["hooked_too"].forward = lambda x: x
    report = normd_torch.replace(model)
    assert not report.replaced
    assert "EpsOutsideNorm computes none of normd's norms" in report.left["other"]
    assert "Float16Norm computes none of normd's norms" in report.left["float16"]
    assert "ShapeNorm, whose forward uses shape" in report.left["shape"]
    for name in ("hooked", "hooked_too"):
        assert report.left[name] == "its forward is replaced on the object itself"
    assert normd_torch.restore(model) == []


class AdaLayerNorm(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 32)
        self.norm = nn.LayerNorm(16, elementwise_affine=False)

    def forward(self, x, condition):
        scale, shift = self.linear(condition).chunk(2, dim=1)
        return self.norm(x) * (1 + scale) + shift


def test_containers_of_norms_and_norms_of_weights_are_not_reported():
    weights = nn.utils.parametrizations.weight_norm(nn.Linear(3, 3))
    spectral = nn.utils.parametrizations.spectral_norm(nn.Linear(3, 3))
    parts = {"ada": AdaLayerNorm(), "weights": weights, "spectral": spectral}
    report = normd_torch.replace(nn.ModuleDict(parts))
    assert report.replaced == {"ada.norm": "LayerNorm"}
    assert not report.left


def test_replacing_leaves_hooks_parameters_and_random_numbers_alone():
    norm = LlamaNorm()
    weight, before, calls = norm.weight, norm.weight.clone(), []
    norm.register_forward_hook(lambda *_: calls.append(1))
    state = torch.get_rng_state()
    normd_torch.replace(norm)
    assert torch.equal(torch.get_rng_state(), state)
    assert norm.weight is weight
    assert torch.equal(weight, before)
    assert not calls
    with torch.no_grad():
        norm(torch.randn(2, 16))
    assert calls == [1]


class ScaleFirst(nn.Module):
    """No name, no code and no attribute that says what it is."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.rand(8))
        self.dim, self.small = 8, 1e-4

    def forward(self, x):
        assert x.numel()
        return functional.rms_norm(x, (self.dim,), self.weight, self.small)


@torch.no_grad()
@pytest.mark.parametrize("key", [ScaleFirst, f"{ScaleFirst.__module__}.ScaleFirst"])
def test_users_add_adapters(key):
    def adapt(norm):
        return normd_torch.Adapted(normd_torch.RMSNorm, normalized_shape=norm.dim, eps=norm.small)

    model = nn.Sequential(ScaleFirst(), nn.SiLU())
    x = torch.randn(3, 8)
    wanted = model(x)
    assert str(normd_torch.replace(model)) == "no further norms"
    report = normd_torch.replace(model, adapters={key: adapt}, fuse_activations=True)
    assert report.replaced == {"0": "RMSNorm"}
    assert report.fused == {"1": "0"}
    torch.testing.assert_close(model(x), wanted)
    assert normd_torch.restore(model) == ["0"]
    assert type(model[1]) is nn.SiLU
    assert torch.equal(model(x), wanted)


def test_adapters_are_checked_and_may_refuse():
    def wrong(norm):
        return normd_torch.Adapted(normd_torch.LayerNorm, normalized_shape=norm.dim, eps=norm.small)

    norm = ScaleFirst()
    report = normd_torch.replace(norm, adapters={ScaleFirst: wrong})
    assert "LayerNorm differs from" in report.left[""]
    report = normd_torch.replace(norm, adapters={ScaleFirst: lambda norm: "too small"})
    assert report.left == {"": "too small"}
    assert type(norm) is ScaleFirst


@pytest.mark.parametrize(
    "adapter", [lambda _: None, lambda _: True, lambda _: nn.LayerNorm(8), normd_torch.RMSNorm]
)
def test_adapters_that_return_something_else_change_nothing(adapter):
    model = nn.Sequential(nn.LayerNorm(8), LlamaNorm(8), ScaleFirst())
    with pytest.raises(TypeError, match=r"adapters: .* for '2', wanted a function that returns an"):
        normd_torch.replace(model, adapters={ScaleFirst: adapter})
    assert [type(each) for each in model] == [nn.LayerNorm, LlamaNorm, ScaleFirst]


class NormAct(nn.GroupNorm):
    def __init__(self, act):
        super().__init__(2, 8)
        self.drop, self.act = nn.Identity(), act

    def forward(self, x):
        x = functional.group_norm(x, self.num_groups, self.weight, self.bias, self.eps)
        return self.act(self.drop(x))


def add_hook(norm):
    """As packages that move parameters do."""
    norm._old_forward = norm.forward
    norm.forward = functools.partial(lambda module, x: module._old_forward(x), norm)


@pytest.mark.parametrize("norm", [LlamaNorm(8), nn.RMSNorm(8), nn.LayerNorm(8), NormAct(nn.SiLU())])
@torch.no_grad()
def test_norms_with_a_forward_of_their_own_are_restored_once_that_is_gone(norm):
    model, x = nn.Sequential(nn.LayerNorm(8), copy.deepcopy(norm)), torch.randn(2, 8)
    wanted, before = model(x), repr(model)
    for _ in range(2):
        assert len(normd_torch.replace(model).replaced) == 2
        y, replaced = model(x), repr(model)
        add_hook(model[1])
        with pytest.raises(RuntimeError, match="'1': its forward is replaced on the object itself"):
            normd_torch.restore(model)
        if isinstance(norm, LlamaNorm):
            with pytest.raises(RuntimeError, match="variance_epsilon set while its forward"):
                model[1].variance_epsilon = 1.0
        assert torch.equal(model(x), y)
        assert repr(model) == replaced
        model[1].forward = model[1]._old_forward  # As removing the hook does.
        assert normd_torch.restore(model) == ["0", "1"]
        assert repr(model) == before
        assert torch.equal(model(x), wanted)
        model[1].forward = model[1].forward


@torch.no_grad()
def test_activations_within_a_norm_are_fused_if_asked():
    model = nn.ModuleList([NormAct(nn.SiLU()), NormAct(nn.Tanh()), NormAct(nn.Identity())])
    x = torch.randn(2, 8, 5)
    wanted = [norm(x) for norm in model]
    for fuse in (False, True):
        report = normd_torch.replace(model, fuse_activations=fuse)
        assert report.replaced == dict.fromkeys("012", "GroupNorm")
        assert report.fused == ({"0.act": "0"} if fuse else {})
        assert ("activation='silu'" in repr(model[0])) == fuse
        for norm, each in zip(model, wanted, strict=True):
            torch.testing.assert_close(norm(x), each)
        normd_torch.restore(model)
        assert type(model[0].act) is nn.SiLU


@torch.no_grad()
def test_an_activation_within_a_norm_is_computed_once_whoever_calls_it():
    theirs, x = NormAct(nn.SiLU()), torch.randn(2, 8, 5)
    ours = copy.deepcopy(theirs)
    normd_torch.replace(ours, fuse_activations=True)
    heir = NormAct(ours.act)
    torch.testing.assert_close(heir(x), theirs(x))
    normd_torch.replace(heir)
    torch.testing.assert_close(heir(x), theirs(x))
    theirs = DimensionNormAct(2)
    ours = copy.deepcopy(theirs)
    assert normd_torch.replace(ours, fuse_activations=True).fused == {"act": ""}
    for rank in (3, 4):
        x = torch.randn((2, 3, 4, 5)[:rank])
        torch.testing.assert_close(ours(x), theirs(x))
        torch.testing.assert_close(ours.add(x, x)[0], theirs(x + x))


@torch.no_grad()
def test_pytorchs_own_layers_are_restored_too():
    model = nn.Sequential(nn.GroupNorm(2, 8), nn.ReLU(), nn.LayerNorm(5)).eval()
    before, x = repr(model), torch.randn(2, 8, 5)
    wanted = model(x)
    normd_torch.replace(model, fuse_activations=True)
    assert repr(model) != before
    assert normd_torch.restore(model) == ["0", "2"]
    assert repr(model) == before
    assert torch.equal(model(x), wanted)
