"""replace() on models of transformers, diffusers, timm and torchvision, where they are there."""

from __future__ import annotations

import copy
import importlib.util
from unittest import mock

import pytest

torch = pytest.importorskip("torch", minversion="2.10")
normd_torch = pytest.importorskip("normd.torch", exc_type=ImportError)

from torch_architectures import ARCHITECTURES

DTYPES = [torch.float32, torch.bfloat16]


@pytest.fixture(params=ARCHITECTURES, ids=str)
def architecture(request):
    package = request.param.package.partition(".")[0]
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"no {package}")
    return request.param


def names_of(model, kinds):
    return {name for name, module in model.named_modules() if type(module).__name__ in kinds}


def to(inputs, dtype):
    return {
        name: value.to(dtype) if value.is_floating_point() else value
        for name, value in inputs.items()
    }


def first_tensor(result):
    while not isinstance(result, torch.Tensor):
        result = result[0]
    return result


def double_reference(model, inputs):
    """The model in float64, where it asks for float32 too."""
    double = mock.patch.object(torch, "float32", torch.float64)
    with double, mock.patch.object(torch.Tensor, "float", torch.Tensor.double):
        return first_tensor(copy.deepcopy(model).double()(**to(inputs, torch.float64)))


def error(y, reference):
    return ((y.double() - reference).norm() / reference.norm()).item()


@torch.no_grad()
def test_every_norm_is_replaced_or_left_for_a_reason(architecture):
    model = architecture.build()
    before = repr(model)
    norms = names_of(model, architecture.replaced)
    left = {name for name in norms if name.rpartition(".")[2] in architecture.left}
    replaced = norms - left
    assert replaced
    assert bool(left) == bool(architecture.left)
    report = normd_torch.replace(model)
    assert report.replaced.keys() == replaced
    assert report.left.keys() == left
    for name, reason in report.left.items():
        assert architecture.left[name.rpartition(".")[2]] in reason
    assert set(normd_torch.restore(model)) == replaced
    assert repr(model) == before


@torch.no_grad()
@pytest.mark.parametrize("dtype", DTYPES, ids=lambda each: str(each).removeprefix("torch."))
def test_results_are_as_near_to_float64_as_eagers(architecture, dtype):
    model = architecture.build()
    inputs = architecture.inputs()
    reference = double_reference(model, inputs)
    model, inputs = model.to(dtype), to(inputs, dtype)
    eager = first_tensor(model(**inputs))
    for fuse in (False, True):
        report = normd_torch.replace(model, fuse_activations=fuse)
        assert len(report.fused) == (architecture.fused if fuse else 0)
        y = first_tensor(model(**inputs))
        assert y.dtype == eager.dtype
        assert error(y, reference) <= 1.2 * error(eager, reference)
        normd_torch.restore(model)
    assert torch.equal(first_tensor(model(**inputs)), eager)


@torch.no_grad()
@pytest.mark.parametrize("dtype", DTYPES, ids=lambda each: str(each).removeprefix("torch."))
def test_replaced_norms_add_as_they_normalize(architecture, dtype):
    model = architecture.build().to(dtype)
    normd_torch.replace(model)
    rows = (normd_torch.LayerNorm, normd_torch.RMSNorm)
    for norm in model.modules():
        if isinstance(norm, rows) and getattr(norm, "axis", None) is None:
            x, residual = torch.randn(2, 2, 3, *norm.normalized_shape, dtype=dtype)
            y, total = norm.add(x, residual)
            assert torch.equal(total, x + residual)
            torch.testing.assert_close(y, norm(total))
            wide, total = norm.add(x, residual.double())
            assert total.dtype == torch.float64
            torch.testing.assert_close(wide.to(dtype), y, atol=0.05, rtol=0.05)
