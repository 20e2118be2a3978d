"""normd.torch.LinearNorm."""

from __future__ import annotations

import contextlib
import copy
import gc
import pickle

import pytest

torch = pytest.importorskip("torch", minversion="2.10")
normd_torch = pytest.importorskip("normd.torch", exc_type=ImportError)

from torch import nn
from torch.nn import functional


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
            ((x, y.half()), "float32 as x's"),
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
