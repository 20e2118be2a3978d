"""PyTorch tensors through the service. Skipped where PyTorch is not installed."""

from __future__ import annotations

import numpy as np
import pytest

import normd

torch = pytest.importorskip("torch")


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
def test_tensors_come_back_as_tensors(client, dtype):
    x = torch.randn(2, 64, 5, 7).to(getattr(torch, dtype))
    y = client.normalize("instance_norm_64", x)
    assert y.dtype == x.dtype
    assert y.shape == x.shape
    if dtype != "bfloat16":
        assert np.array_equal(y.numpy(), client.normalize("instance_norm_64", x.numpy()))
    assert torch.equal(client.normalize_stream("instance_norm_64", x).output, y)
    y += 1


def test_channels_last_tensors_are_made_dense(client):
    x = torch.randn(2, 64, 5, 7)
    y = client.normalize("instance_norm_64", x.to(memory_format=torch.channels_last))
    assert torch.equal(y, client.normalize("instance_norm_64", x))


def test_autograd_is_refused(client, server):
    x = torch.randn(1, 64, 4, requires_grad=True)
    with pytest.raises(normd.InvalidArgumentError) as error:
        client.normalize("instance_norm_64", x)
    assert error.value.field == "requires_grad"
    # In the calling thread, which is not that of the fixture's aio client.
    with torch.no_grad(), normd.Client(server.address) as own:
        own.normalize("instance_norm_64", x)


def test_forward_mode_is_refused(client):
    x = torch.randn(1, 64, 4)
    with torch.no_grad(), torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(x, x)
        with pytest.raises(normd.InvalidArgumentError) as error:
            client.normalize("instance_norm_64", dual)
    assert error.value.field == "tangent"


def test_other_types_are_refused(client):
    with pytest.raises(normd.InvalidArgumentError) as error:
        client.normalize("instance_norm_64", torch.ones(1, 64, 4, dtype=torch.int32))
    assert (error.value.field, error.value.came) == ("dtype", "torch.int32")


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_cuda_tensors_come_back_to_their_device(client):
    x = torch.randn(1, 64, 4, device="cuda")
    y = client.normalize("instance_norm_64", x)
    assert y.device == x.device
    assert torch.equal(y.cpu(), client.normalize("instance_norm_64", x.cpu()))
