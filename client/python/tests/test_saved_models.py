"""The lines of docs/operations.md that save a module's parameters, against that module.

Skipped where PyTorch and the packages that have the modules are not installed.
"""

from __future__ import annotations

import pathlib
import re
import textwrap

import pytest

import normd

torch = pytest.importorskip("torch")
safetensors = pytest.importorskip("safetensors")
pytest.importorskip("safetensors.torch")
transformers = pytest.importorskip("transformers")
normalization = pytest.importorskip("diffusers.models.normalization")

DOCUMENT = pathlib.Path(__file__).resolve().parents[3] / "docs" / "operations.md"


def blocks() -> list[str]:
    """The document's indented blocks."""
    found = re.findall(r"(?:^    .*\n)(?:(?:^    .*\n)|\n(?=    ))*", DOCUMENT.read_text(), re.M)
    return [textwrap.dedent(each) for each in found]


def block_that_saves(name: str) -> str:
    (found,) = [each for each in blocks() if f'save("{name}"' in each]
    # Where a whole network is loaded, the module is given.
    lines = [line for line in found.splitlines() if not line.startswith(("model = ", "norm = "))]
    return "\n".join(lines)


@pytest.fixture
def saved(binaries, tmp_path, monkeypatch):
    """Runs the lines that save NAME and what follows them, and serves the result."""
    from conftest import Server

    monkeypatch.chdir(tmp_path)
    pathlib.Path("models").mkdir()
    servers = []

    def run(name, **given):
        names = {"pathlib": pathlib, "torch": torch, "safetensors": safetensors}
        (definition,) = [each for each in blocks() if each.startswith("def save(")]
        names.update(given)
        with torch.no_grad():
            exec(definition + "\n" + block_that_saves(name), names)
        servers.append(Server(binaries, f"--model_repository={tmp_path / 'models'}"))
        return normd.Client(servers[-1].address), names

    yield run
    for server in servers:
        server.close()


def randomized(module):
    torch.manual_seed(7)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(torch.randn_like(parameter))
    return module.eval()


def close(actual, expected):
    return torch.allclose(actual, expected, rtol=1e-5, atol=1e-5)


def test_llamas_norm_with_a_residual(saved):
    norm = randomized(transformers.models.llama.modeling_llama.LlamaRMSNorm(96, eps=1e-5))
    client, _ = saved("layer_0_mlp_norm", norm=norm)
    x, residual = torch.randn(2, 5, 96), torch.randn(2, 5, 96)
    outputs = client.call("layer_0_mlp_norm", {"x": x, "residual": residual}).outputs
    assert torch.equal(outputs["residual_out"], x + residual)
    with torch.no_grad():
        assert close(outputs["y"], norm(x + residual))


def test_gemmas_norm(saved):
    norm = randomized(transformers.models.gemma.modeling_gemma.GemmaRMSNorm(96))
    client, _ = saved("gemma_norm", norm=norm)
    x = torch.randn(3, 96)
    with torch.no_grad():
        assert close(client.normalize("gemma_norm", x), norm(x))


def test_mambas_gated_norm(saved):
    module = transformers.models.mamba2.modeling_mamba2.MambaRMSNormGated
    norm = randomized(module(96, group_size=24, eps=1e-5))
    client, _ = saved("mamba_norm", norm=norm)
    x, gate = torch.randn(2, 5, 96), torch.randn(2, 5, 96)
    with torch.no_grad():
        assert close(client.normalize("mamba_norm", {"x": x, "gate": gate}), norm(x, gate))


def test_diffusers_adaptive_layer_norm(saved):
    ada = randomized(normalization.AdaLayerNorm(32, output_dim=96, chunk_dim=1))
    condition = torch.randn(3, 32)
    client, names = saved("ada_layer_norm", ada=ada, condition=condition)
    x = torch.randn(3, 7, 48)
    inputs = {"x": x, "scale": names["scale"], "shift": names["shift"]}
    with torch.no_grad():
        assert close(client.normalize("ada_layer_norm", inputs), ada(x, temb=condition))


@pytest.mark.parametrize("activation", [None, "silu"])
def test_diffusers_adaptive_group_norm(saved, activation):
    ada = randomized(normalization.AdaGroupNorm(32, 24, 4, act_fn=activation))
    condition = torch.randn(3, 32)
    client, names = saved("ada_group_norm", ada=ada, condition=condition)
    x = torch.randn(3, 24, 5, 6)
    inputs = {"x": x, "scale": names["scale"], "shift": names["shift"]}
    with torch.no_grad():
        assert close(client.normalize("ada_group_norm", inputs), ada(x, condition))


def test_a_bank_of_styles(saved):
    norms = [randomized(torch.nn.InstanceNorm2d(8, affine=True)) for _ in range(5)]
    for number, norm in enumerate(norms):
        norm.weight.data += number
    client, _ = saved("styles", norms=norms)
    x = torch.randn(2, 8, 6, 7)
    weights = torch.nn.functional.one_hot(torch.tensor([3, 1]), 5).to(x.dtype)
    y = client.normalize("styles", {"x": x, "style_weights": weights})
    with torch.no_grad():
        assert close(y, torch.cat([norms[3](x[:1]), norms[1](x[1:])]))
