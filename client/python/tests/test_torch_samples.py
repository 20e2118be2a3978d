"""PyTorch's own samples of the five norms, through normd.torch and through the service.

The service's results are those of normctl, the C++ client, and of the operators, bit for bit.
"""

from __future__ import annotations

import contextlib
from pathlib import Path

import numpy as np
import pytest

import normd

torch = pytest.importorskip("torch", minversion="2.10")
normd_torch = pytest.importorskip("normd.torch", exc_type=ImportError)
invocations = pytest.importorskip("torch.testing._internal.common_methods_invocations")

from conftest import Server

NORMS = ("instance_norm", "group_norm", "layer_norm", "rms_norm", "batch_norm")
DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
DEVICES = [
    "cpu",
    pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")),
]

pytestmark = pytest.mark.usefixtures("no_grad")


@pytest.fixture
def no_grad():
    with torch.no_grad():
        yield


class Sample:
    """One of PyTorch's, as its functional takes it."""

    def __init__(self, name, sample):
        self.name, self.x = name, sample.input
        self.arguments, self.options = sample.args, dict(sample.kwargs)
        order = {
            "instance_norm": ("running_mean", "running_var", "weight", "bias"),
            "group_norm": ("num_groups", "weight", "bias", "eps"),
            "layer_norm": ("normalized_shape", "weight", "bias", "eps"),
            "rms_norm": ("normalized_shape", "weight", "eps"),
            "batch_norm": ("running_mean", "running_var", "weight", "bias", "training"),
        }[name]
        self.options.update(zip(order, self.arguments, strict=False))
        # For the running statistics, which training would write.
        self.options.pop("momentum", None)

    def reference(self):
        """PyTorch's result, in float64 where eps is given; its arguments stay as they are."""
        if self.name == "rms_norm" and self.options.get("eps") is None:  # By x's type.
            return torch.nn.functional.rms_norm(self.x, **self.options).double()
        wide = {
            key: value.double().clone() if isinstance(value, torch.Tensor) else value
            for key, value in self.options.items()
        }
        return getattr(torch.nn.functional, self.name)(self.x.double(), **wide)

    def ours(self):
        options = dict(self.options)
        if self.name == "instance_norm" and options.pop("use_input_stats", True):
            options["running_mean"] = options["running_var"] = None
        options.pop("training", None)
        return getattr(normd_torch, self.name)(self.x, **options)

    def refusal(self):
        """What normd refuses of PyTorch's samples, and why."""
        if self.options.get("training"):
            return "training"
        if (self.options.get("eps") or 0) < 0:
            return "eps"
        if self.x.dim() < 2 and self.name == "batch_norm":
            return "dimensions"
        return None


def samples(name, device, dtype):
    info = next(each for each in invocations.op_db if each.name == f"nn.functional.{name}")
    return [Sample(name, each) for each in info.sample_inputs(device, dtype, requires_grad=False)]


def limit(dtype):
    return {torch.float64: 1e-12, torch.float32: 2e-6}.get(dtype, torch.finfo(dtype).eps)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", NORMS)
@pytest.mark.parametrize("device", DEVICES)
def test_samples_through_the_operators(device, name, dtype):
    computed = 0
    for sample in samples(name, device, dtype):
        refusal = sample.refusal()
        if refusal == "training":
            continue
        if refusal:
            with pytest.raises(RuntimeError, match=refusal):
                sample.ours()
            continue
        wanted = sample.reference()
        error = (sample.ours().double() - wanted).abs() / wanted.abs().clamp(min=1)
        assert not error.numel() or error.max() <= limit(dtype), sample.options
        computed += 1
    assert computed >= 3


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("device", DEVICES)
def test_an_absent_eps_is_pytorchs(device, dtype):
    """In rows about as small as the machine epsilons of all types."""
    sizes = torch.tensor([[2e-8], [3e-4], [3e-2], [0.1], [1.0]], dtype=torch.float64)
    x = (torch.randn(5, 64, dtype=torch.float64) * sizes).to(device, dtype)
    options = {"device": device, "dtype": dtype}
    replaced, nothing = torch.nn.RMSNorm(64, **options), torch.zeros_like(x)
    wanted = replaced(x)
    normd_torch.replace(replaced)
    torch.compiler.reset()
    exported = torch.export.export(replaced, (x,))
    decomposed = exported.run_decompositions(normd_torch.decompositions())
    for y in (
        normd_torch.rms_norm(x, 64),
        normd_torch.RMSNorm(64, **options)(x),
        normd_torch.AddRMSNorm(64, **options)(x, nothing)[0],
        replaced(x),
        replaced.add(x, nothing)[0],
        torch.compile(replaced, backend="aot_eager", fullgraph=True)(x),
        exported.module()(x),
        decomposed.module()(x),
    ):
        torch.testing.assert_close(y, wanted)


def config_of(sample):
    """The model's config and parameters; None for what a model cannot say."""
    options, x = sample.options, sample.x
    eps = f"eps: {options['eps']:.17g}" if options.get("eps") is not None else ""
    affine = f"affine: {str(options.get('weight') is not None).lower()}"
    own = options.get("use_input_stats", True)
    if sample.name in {"layer_norm", "rms_norm"}:
        shape = " ".join(f"normalized_shape: {n}" for n in options["normalized_shape"])
        body = f"{shape} {affine} {eps}"
    elif sample.name == "group_norm":
        body = f"channels: {x.shape[1]} groups: {options['num_groups']} {affine} {eps}"
    else:
        body = f"channels: {x.shape[1]} {affine} {eps}"
        if sample.name == "instance_norm" and not own:
            body += " use_running_stats: true"
    names = ["weight", "bias"]
    if sample.name == "batch_norm" or not own:
        names += ["running_mean", "running_var"]
    tensors = {name: options[name] for name in names if options.get(name) is not None}
    return f"{sample.name} {{ {body} }}", tensors


def write_model(folder: Path, sample) -> None:
    config, tensors = config_of(sample)
    (folder / "1").mkdir(parents=True)
    (folder / "config.textproto").write_text(config + "\n")
    safetensors = pytest.importorskip("safetensors.torch")
    dense = {name: tensor.contiguous() for name, tensor in tensors.items()}
    safetensors.save_file(dense, folder / "1" / "params.safetensors")


def by_normctl(server, normctl, folder, x, name):
    """The result by the C++ client."""
    np.save(folder / "x.npy", x.numpy())
    normctl("normalize", "--model", name, folder / "x.npy", "-o", folder / "y.npy", server=server)
    return torch.from_numpy(np.load(folder / "y.npy"))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_samples_through_the_service(binaries, run_normctl, tmp_path, dtype):
    loaded = {}
    for name in NORMS:
        for i, sample in enumerate(samples(name, "cpu", dtype)):
            if not sample.refusal() and sample.x.dim() > 1:
                write_model(tmp_path / "models" / f"{name}_{i}", sample)
                loaded[f"{name}_{i}"] = sample
    assert len(loaded) >= 20
    repository = f"--model_repository={tmp_path / 'models'}"
    told = {}  # One of each norm, because each run of normctl is a process.
    with (
        contextlib.closing(Server(binaries, repository)) as server,
        normd.Client(server.address) as client,
    ):
        for name, sample in loaded.items():
            y = client.normalize(name, sample.x)
            assert torch.equal(y, sample.ours()), name
            if dtype != torch.bfloat16 and sample.x.numel():
                told[sample.name] = name, y
        for name, y in told.values():
            result = by_normctl(server, run_normctl, tmp_path, loaded[name].x, name)
            assert torch.equal(y, result), name
