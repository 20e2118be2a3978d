"""What every operator of normd.torch refuses: other devices, and derivatives on every way in.

The calls are made from the schemas, so that each tensor argument of each operator has its turn.
"""

from __future__ import annotations

import inspect
import itertools
import re

import pytest

torch = pytest.importorskip("torch", minversion="2.10")
normd_torch = pytest.importorskip("normd.torch", exc_type=ImportError)

from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd import forward_ad
from torch_cases import BLOCK, CASES, FIRST, FUNCTIONS, INT8, Maker

from normd.torch import _schemas

NAMES = (*_schemas.NORMS, "linear_norm")
OVERLOADS = [
    getattr(getattr(torch.ops.normd, name), overload)
    for name in NAMES
    for overload in ("default", "out")
]
ARGUMENTS = [
    (overload, argument.name)
    for overload in OVERLOADS
    for argument in overload._schema.arguments
    if "Tensor" in str(argument.type)
]
CODES = [
    (overload, argument.name)
    for overload in [*OVERLOADS, torch.ops.normd.linear_norm_prepare.default]
    for argument in overload._schema.arguments
    if argument.name.partition("_")[0]
    in {"activation", "combine", "dtype", "precision", "quantization", "statistics"}
    and str(argument.type) == "int"
]
# Two functions stand for those that call `normalize`: one has one result, one has two.
CALLED = [name for name in FIRST if name not in FUNCTIONS]
CALLED += ["gated_rms_norm", "add_adaptive_layer_norm"]
OTHERS = [pair for pair in ARGUMENTS if pair[1] != "x"]
FLOATS = [pair for pair in ARGUMENTS if pair[1] not in {"style_index", "prepared"}]
REFUSED = "requires a gradient|under autograd|forward AD|derivative for normd::"
GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")


def name_of(value):
    return str(value).removeprefix("normd.")


def call_with(overload, changed, tensor, device="cpu"):
    """A call with every tensor argument, of any shape: these are looked at later."""
    options = {}
    for argument in overload._schema.arguments:
        if argument.name == changed:
            options[argument.name] = tensor
        elif "Tensor" in str(argument.type):
            options[argument.name] = torch.randn(2, 6, 4, 4, device=device)
        elif not argument.has_default_value():
            options[argument.name] = {"float": 1.0, "int": 1, "bool": False}[str(argument.type)]
    return lambda: overload(**options)


class TestDevices:
    @pytest.mark.parametrize(("overload", "changed"), OTHERS, ids=name_of)
    def test_a_tensor_on_meta_is_refused(self, overload, changed):
        call = call_with(overload, changed, torch.randn(2, 6, 4, 4, device="meta"))
        with torch.no_grad(), pytest.raises(RuntimeError) as error:
            call()
        wanted = f"{overload._schema.name}: {changed}.device: meta, wanted cpu as x's"
        assert str(error.value) == wanted

    @pytest.mark.parametrize("overload", dict(OTHERS), ids=name_of)
    def test_x_on_meta_is_refused_beside_tensors_on_the_cpu(self, overload):
        call = call_with(overload, "x", torch.randn(2, 6, 4, 4, device="meta"))
        with torch.no_grad(), pytest.raises(RuntimeError, match=r"device: cpu, wanted meta as x's"):
            call()

    @pytest.mark.parametrize(("overload", "changed"), OTHERS, ids=name_of)
    def test_a_fake_tensor_of_another_device_is_refused(self, overload, changed):
        with FakeTensorMode(), torch.no_grad():
            call = call_with(overload, changed, torch.randn(2, 6, 4, 4), "cuda")
            with pytest.raises(RuntimeError, match=rf"{changed}.device: cpu, wanted cuda:0 as x's"):
                call()

    @GPU
    @pytest.mark.parametrize(("overload", "changed"), OTHERS, ids=name_of)
    @pytest.mark.parametrize(
        "devices", [("cuda", "cpu", "cuda:0", "cpu"), ("cpu", "cuda", "cpu", "cuda:0")]
    )
    def test_a_tensor_on_another_device_is_refused(self, overload, changed, devices):
        of_x, of_changed, wanted, came = devices
        call = call_with(overload, changed, torch.randn(2, 6, 4, 4, device=of_changed), of_x)
        with torch.no_grad(), pytest.raises(RuntimeError) as error:
            call()
        assert f"{changed}.device: {came}, wanted {wanted} as x's" in str(error.value)

    def test_a_layer_that_was_left_on_meta_is_refused(self):
        for layer in (
            normd_torch.LayerNorm(16, device="meta"),
            normd_torch.GroupNorm(2, 16, device="meta"),
            normd_torch.BatchNorm1d(16, device="meta").eval(),
        ):
            with pytest.raises(RuntimeError, match="device: meta, wanted cpu as x's"):
                layer(torch.randn(4, 16))
        with pytest.raises(NotImplementedError, match="Meta"):
            normd_torch.LinearNorm(16, 16, device="meta")(torch.randn(4, 16))


class TestCodes:
    @pytest.mark.parametrize(("overload", "changed"), CODES, ids=name_of)
    def test_numbers_of_nothing_are_refused(self, overload, changed):
        for code in (-1, 256, 257, 2**32 + 1, -(2**63)):
            with torch.no_grad(), pytest.raises(RuntimeError) as error:
                call_with(overload, changed, code)()
            part = f"{overload._schema.name}: {changed}: unknown value {code}, wanted a number of"
            assert part in str(error.value)


class TestGradients:
    @pytest.mark.parametrize(("overload", "changed"), FLOATS, ids=name_of)
    def test_a_call_raises(self, overload, changed):
        call = call_with(overload, changed, torch.randn(2, 6, 4, 4, requires_grad=True))
        with pytest.raises(RuntimeError) as error:
            call()
        by_us = f"{changed}: requires a gradient, wanted a call under"
        by_pytorch = "functions with out=... arguments don't support automatic differentiation"
        assert by_us in str(error.value) or by_pytorch in str(error.value)

    @pytest.mark.parametrize(("overload", "changed"), FLOATS, ids=name_of)
    @pytest.mark.parametrize("enabled", [True, False])
    def test_forward_mode_raises(self, overload, changed, enabled):
        tensor, tangent = torch.randn(2, 2, 6, 4, 4)
        with torch.set_grad_enabled(enabled), forward_ad.dual_level():
            call = call_with(overload, changed, forward_ad.make_dual(tensor, tangent))
            with pytest.raises(RuntimeError, match="forward AD with normd::"):
                call()

    def test_preparing_raises(self):
        layer = normd_torch.LinearNorm(4, 4)
        options = (1, 1e-5, False, False, 0, 0.01, 0)
        for tensor in (layer.weight, layer.bias):
            tensor.requires_grad_(True)
            with pytest.raises(RuntimeError, match="requires a gradient"):
                torch.ops.normd.linear_norm_prepare(layer.weight, layer.bias, *options)
            tensor.requires_grad_(False)
            with forward_ad.dual_level():
                dual = [
                    forward_ad.make_dual(each, each) if each is tensor else each
                    for each in (layer.weight, layer.bias)
                ]
                with pytest.raises(RuntimeError, match="forward AD"):
                    torch.ops.normd.linear_norm_prepare(*dual, *options)


def one_input(name, out_variant=False):
    """(a function of x alone that calls the operator, x)"""
    arguments = FIRST[name].arguments(Maker("cpu", torch.float32))
    operator = FIRST[name].call

    def call(x):
        if not out_variant:
            results = operator(x, *arguments[1:])
            return results if isinstance(results, torch.Tensor) else results[0] + results[1]
        results = operator.default(arguments[0], *arguments[1:])
        names = ("out",) if isinstance(results, torch.Tensor) else ("out", "residual_out")
        written = {each: torch.empty_like(x) for each in names}
        operator.out(x, *arguments[1:], **written)
        return sum(written.values()) * x  # What is left of the derivative without the operator.

    return call, arguments[0]


WAYS = {
    "backward": lambda f, x: f(x.requires_grad_()).sum().backward(),
    "jvp": lambda f, x: torch.func.jvp(f, (x,), (x,)),
    "jvp under no_grad": lambda f, x: torch.no_grad()(torch.func.jvp)(f, (x,), (x,)),
    "jacfwd": lambda f, x: torch.func.jacfwd(f)(x),
    "jacrev": lambda f, x: torch.func.jacrev(f)(x),
    "grad": lambda f, x: torch.func.grad(lambda z: f(z).sum())(x),
    "vjp": lambda f, x: torch.func.vjp(f, x)[1](x),
    "linearize": torch.func.linearize,
    "jacobian": torch.autograd.functional.jacobian,
    "gradient of a tangent": lambda f, x: torch.func.grad(
        lambda z: torch.func.jvp(f, (z,), (x,))[1].sum()
    )(x),
    "vmap of jvp": lambda f, x: torch.func.vmap(
        lambda v: torch.func.jvp(f, (x,), (v,))[1]
    )(torch.stack([x, x])),
    "checkpoint": lambda f, x: torch.utils.checkpoint.checkpoint(
        f, x.requires_grad_(), use_reentrant=True
    ).sum().backward(),
    "compile": lambda f, x: torch.compile(f, backend="aot_eager")(
        x.requires_grad_()
    ).sum().backward(),
    "compile, of an intermediate": lambda f, x: torch.compile(
        lambda z: f(z * 2), backend="aot_eager"
    )(x.requires_grad_()).sum().backward(),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore")
class TestWaysIn:
    @pytest.mark.parametrize("way", WAYS)
    @pytest.mark.parametrize("out_variant", [False, True], ids=["new", "out"])
    @pytest.mark.parametrize("name", CALLED)
    def test_a_derivative_raises(self, name, out_variant, way):
        if "compile" in way:
            torch.compiler.reset()
        function, x = one_input(name, out_variant)
        with pytest.raises(Exception, match=REFUSED):
            WAYS[way](function, x.detach().clone())

    @pytest.mark.parametrize("name", FIRST)
    def test_a_derivative_through_what_was_traced_or_exported_raises(self, name):
        function, x = one_input(name)

        class Module(torch.nn.Module):
            def forward(self, x):
                return function(x)

        with torch.no_grad():
            made = [
                torch.jit.trace(Module(), (x,)),
                torch.export.export(Module(), (x,)).module(),
            ]
            wanted = function(x)
        for each in made:
            with torch.no_grad():
                assert torch.equal(each(x), wanted)
            with pytest.raises(RuntimeError, match=REFUSED):
                each(x.detach().clone().requires_grad_()).sum().backward()
            with pytest.raises(RuntimeError, match=REFUSED):
                torch.func.jvp(each, (x,), (x,))

    @pytest.mark.parametrize("name", FIRST)
    def test_a_call_without_a_derivative_computes(self, name):
        function, x = one_input(name)
        with torch.no_grad():
            wanted = function(x)
        assert torch.equal(function(x), wanted)
        with torch.no_grad():
            assert torch.equal(function(x.clone().requires_grad_()), wanted)
        assert torch.equal(function(x.clone().requires_grad_().detach()), wanted)
        assert torch.equal(torch.func.vmap(function)(x[None])[0], wanted)
        held = torch.ones(3, requires_grad=True)  # Another part of the model.
        with torch.no_grad():
            y = function(x)
        (held.sum() * y.sum()).backward()
        assert torch.equal(held.grad, y.sum().expand(3))

    def test_functions_and_layers_raise(self):
        x, v = torch.randn(2, 4, 16)
        weight = torch.ones(16)
        norm, linear = normd_torch.LayerNorm(16), normd_torch.LinearNorm(16, 16)
        for function in (
            lambda x, w: normd_torch.layer_norm(x, 16, w),
            lambda x, w: normd_torch.rms_norm(x, 16, w),
            lambda x, w: normd_torch.quantized_rms_norm(x, 16, w).values,
            lambda x, w: normd_torch.quantized_rms_norm(x, 16, w).scales,
            lambda x, w: normd_torch.layer_norm_with_statistics(x, 16, w)[2],
            lambda x, w: normd_torch.rms_norm(x, 16, w, out=torch.empty(4, 16)),
            lambda x, w: torch.func.functional_call(norm, {"weight": w}, (x,)),
            lambda x, w: torch.func.functional_call(linear, {"weight": w.expand(16, 16)}, (x,)),
        ):
            for i, tangent in enumerate((v, weight)):
                with pytest.raises(RuntimeError, match=REFUSED):
                    torch.func.jvp(
                        lambda t, i=i, f=function: f(t, weight) if i == 0 else f(x, t),
                        ((x, weight)[i],),
                        (tangent,),
                    )
            for arguments in (
                (x.clone().requires_grad_(), weight),
                (x, weight.clone().requires_grad_()),
            ):
                with pytest.raises(RuntimeError, match="requires a gradient"):
                    function(*arguments)

    def test_a_prepared_linear_norm_raises(self):
        layer = normd_torch.LinearNorm(16, 16)
        layer.prepare()
        x = torch.randn(4, 16)
        for tensor in layer.parameters():
            tensor.requires_grad_()
            with pytest.raises(RuntimeError, match="requires a gradient"):
                layer(x)
            with torch.no_grad():
                layer(x)
            tensor.requires_grad_(False)
        weight = torch.randn(16, 16)
        with pytest.raises(RuntimeError):
            torch.func.jvp(
                lambda w: torch.func.functional_call(layer, {"weight": w}, (x,)),
                (weight,), (weight,),
            )  # fmt: skip
        with pytest.raises(RuntimeError):
            torch.func.grad(lambda w: torch.func.functional_call(layer, {"weight": w}, (x,)).sum())(
                weight
            )


def out_calls():
    """[(label, results as they are, the call that writes to tensors of the results' names)]"""
    for case in CASES:
        arguments = case.arguments(Maker("cpu", torch.float32))
        yield str(case), case.call, arguments, {}
    t = Maker("cpu", torch.float32)
    rows = (t(5, 300), 1, 1, 1, 1, 0, 1e-5)
    yield "normalize-all", torch.ops.normd.normalize, rows, {
        "residual": t(5, 300), "write_residual": True, "statistics_out": True,
        "quantization": INT8, "quantization_scale": BLOCK,
    }  # fmt: skip
    layer = normd_torch.LinearNorm(32, 48)
    layer.prepare()
    options = (32, 48, 1e-5, False, False, 0, 0.01, 0)
    yield (
        "linear_norm",
        torch.ops.normd.linear_norm,
        (t(5, 32), None, layer._prepared.weight, *options),
        {},
    )


OUT_CALLS = list(out_calls())
OF_OUT_CALLS = pytest.mark.parametrize(
    ("operator", "arguments", "options"),
    [each[1:] for each in OUT_CALLS],
    ids=[each[0] for each in OUT_CALLS],
)


def named_results(operator, arguments, options):
    with torch.no_grad():
        results = operator.default(*arguments, **options)
    results = (results,) if isinstance(results, torch.Tensor) else results
    return dict(zip(("out", "residual_out", "mean", "rstd", "scales"), results, strict=False))


class TestOut:
    @OF_OUT_CALLS
    @pytest.mark.parametrize("mode", [torch.no_grad, torch.enable_grad, torch.inference_mode])
    def test_the_version_of_what_is_written_rises(self, operator, arguments, options, mode):
        results = named_results(operator, arguments, options)
        for place in (torch.empty_like, lambda y: torch.empty(*y.shape, 2, dtype=y.dtype)[..., 0]):
            written = {name: place(y) for name, y in results.items()}
            views = {name: y.view_as(y) for name, y in written.items()}
            before = {name: (y._version, views[name]._version) for name, y in written.items()}
            with mode():
                operator.out(*arguments, **options, **written)
            for name, y in written.items():
                assert y._version > before[name][0], name
                assert views[name]._version > before[name][1], name
            assert [each._version for each in arguments if isinstance(each, torch.Tensor)] == [
                0 for each in arguments if isinstance(each, torch.Tensor)
            ]

    @OF_OUT_CALLS
    @pytest.mark.parametrize("mode", [torch.no_grad, torch.enable_grad, torch.inference_mode])
    def test_negated_views_are_written_to(self, operator, arguments, options, mode):
        results = named_results(operator, arguments, options)
        for changed in [(name,) for name in results] + [tuple(results)]:
            written = {name: torch.empty_like(y) for name, y in results.items()}
            for name in changed:
                written[name] = written[name]._neg_view()
            with mode():
                operator.out(*arguments, **options, **written)
            for name, y in written.items():
                assert y.is_neg() == (name in changed)
                assert torch.equal(y.float(), results[name].float()), name
                assert y._version > 0, name

    @OF_OUT_CALLS
    def test_results_in_one_place_are_refused(self, operator, arguments, options):
        results = {n: y for n, y in named_results(operator, arguments, options).items() if y.nbytes}
        for first, second in itertools.combinations(results, 2):
            size = results[first].nbytes
            for begin, shared in (
                (0, True),
                ((size - 1) // 8 * 8, True),
                (-(-size // 8) * 8, False),
            ):
                memory = torch.empty(begin + size + results[second].nbytes, dtype=torch.uint8)
                written = {name: torch.empty_like(y) for name, y in results.items()}
                for name, offset in ((first, 0), (second, begin)):
                    like = results[name]
                    part = memory[offset : offset + like.nbytes]
                    written[name] = part.view(like.dtype).view(like.shape)
                if shared:
                    with pytest.raises(RuntimeError, match=f"{second}: in the memory of {first}, "):
                        operator.out(*arguments, **options, **written)
                else:
                    operator.out(*arguments, **options, **written)
                    assert all(torch.equal(y, results[name]) for name, y in written.items())

    @pytest.mark.parametrize("strided", [False, True])
    @pytest.mark.parametrize(
        "write",
        [
            lambda h: normd_torch.layer_norm(h, 16, out=h),
            lambda h: normd_torch.rms_norm(torch.randn(4, 16), 16, out=h),
            lambda h: normd_torch.add_rms_norm(h, h, 16, out=(torch.empty(4, 16), h)),
            lambda h: normd_torch.group_norm(h, 4, out=h),
            lambda h: normd_torch.lp_normalize(h.detach(), out=h),
        ],
    )
    def test_what_backward_needs_is_missed(self, write, strided):
        a = torch.randn(4, 16, requires_grad=True)
        h = a * torch.ones(4, 32)[:, ::2] if strided else a * 1
        loss = (h * h).sum()
        with torch.no_grad():
            write(h)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            loss.backward()

    def test_a_refused_call_leaves_the_version(self):
        x, out = torch.randn(4, 16), torch.empty(4, 15)
        with pytest.raises(RuntimeError, match=r"out\.shape"):
            normd_torch.layer_norm(x, 16, out=out)
        assert out._version == 0

    def test_inference_tensors_are_written_to_in_inference_mode_alone(self):
        x = torch.randn(4, 16)
        with torch.inference_mode():
            out = torch.empty(4, 16)
            normd_torch.layer_norm(x, 16, out=out)
        with pytest.raises(RuntimeError, match="Inplace update to inference tensor"):
            normd_torch.layer_norm(x, 16, out=out)
        with pytest.raises(RuntimeError, match="out: an inference tensor"):
            normd_torch.layer_norm(x, 16, out=out._neg_view())


def test_every_operator_has_a_case():
    assert {*FIRST, "normalize", "linear_norm"} == {*NAMES, *FUNCTIONS}
    assert all(inspect.isbuiltin(each._op) for each in OVERLOADS)
    assert re.match(REFUSED, "derivative for normd::layer_norm is not implemented")
