"""Small models of transformers, diffusers, timm and torchvision, with random weights."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import torch

TOKENS = 96
# The size of hidden states, of a sequence, and of images; bench/models.py asks for more.
WIDTH = int(os.environ.get("NORMD_MODELS_WIDTH", "64"))
LENGTH = int(os.environ.get("NORMD_MODELS_LENGTH", "17"))
SIDE = int(os.environ.get("NORMD_MODELS_SIDE", "32"))


@dataclass
class Architecture:
    """A model, its inputs, and the classes of its norms.

    Attributes:
      replaced: names of their classes.
      left: norms of these classes that normd leaves: the last part of their names, and a part of
        the reason.
      fused: how many activations fuse_activations fuses.
    """

    package: str
    name: str
    make: Callable[[Any], Any]
    inputs: Callable[[], dict[str, Any]]
    replaced: set[str]
    left: dict[str, str] = field(default_factory=dict)
    fused: int = 0

    def __str__(self) -> str:
        return f"{self.package}-{self.name}"

    def build(self) -> torch.nn.Module:
        torch.manual_seed(5)
        model = self.make(importlib.import_module(self.package)).eval()
        with torch.no_grad():
            for module in model.modules():
                if "norm" not in type(module).__name__.lower():
                    continue
                own = [*module.parameters(recurse=False), *module.buffers(recurse=False)]
                for tensor in own:
                    if tensor.is_floating_point():
                        tensor.add_(torch.rand_like(tensor) * 0.5)
        return model


def _tokens() -> dict[str, Any]:
    return {"input_ids": torch.randint(TOKENS, (3, LENGTH))}


def _pairs() -> dict[str, Any]:
    return {**_tokens(), "decoder_input_ids": torch.randint(TOKENS, (3, 7))}


def _pixels() -> dict[str, Any]:
    return {"pixel_values": torch.randn(2, 3, 2 * SIDE, 2 * SIDE)}


def _x() -> dict[str, Any]:
    return {"x": torch.randn(8, 3, SIDE, SIDE)}


def _latents(**more: Any) -> Callable[[], dict[str, Any]]:
    def make() -> dict[str, Any]:
        inputs = {name: torch.randn(shape) for name, shape in more.items()}
        return {**inputs, "timestep": torch.tensor([3, 700])}

    return make


def _decoder(family: str, norms: set[str] | None = None, **options: Any) -> Architecture:
    sizes = {
        "vocab_size": TOKENS,
        "hidden_size": WIDTH,
        "intermediate_size": 2 * WIDTH,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "pad_token_id": 0,
        "use_cache": False,
    }

    def make(transformers: Any) -> Any:
        config = getattr(transformers, f"{family}Config")(**{**sizes, **options})
        config._experts_implementation = "eager"  # The others have no float64.
        kind = getattr(transformers, f"{family}Model", None) or transformers.AutoModel
        return kind(config)

    return Architecture("transformers", family, make, _tokens, norms or {f"{family}RMSNorm"})


def _of_transformers(
    family: str, norms: set[str], inputs: Callable[[], dict[str, Any]], **options: Any
) -> Architecture:
    def make(transformers: Any) -> Any:
        config = getattr(transformers, f"{family}Config")(**options)
        return getattr(transformers, f"{family}Model")(config)

    return Architecture("transformers", family, make, inputs, norms)


def _of_timm(name: str, norms: set[str], fused: int = 0, **options: Any) -> Architecture:
    def make(timm: Any) -> Any:
        return timm.create_model(name, pretrained=False, num_classes=10, **options)

    return Architecture("timm", name, make, _x, norms, fused=fused)


_GEMMA3 = {"sliding_window": 8, "layer_types": ["sliding_attention", "full_attention"]}
_DEEPSEEK = {
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "n_group": 1,
    "topk_group": 1,
    "moe_intermediate_size": 32,
    "q_lora_rank": 16,
    "kv_lora_rank": 16,
    "qk_rope_head_dim": 16,
    "qk_nope_head_dim": 16,
    "v_head_dim": 16,
    "num_key_value_heads": 4,
}
_T5 = {"d_kv": 16, "d_ff": 128, "num_layers": 2, "num_heads": 4, "feed_forward_proj": "gated-gelu"}
_MAMBA = {"hidden_size": WIDTH, "num_hidden_layers": 2, "vocab_size": TOKENS}
_MAMBA2 = {**_MAMBA, "num_heads": WIDTH // 8, "head_dim": 16, "n_groups": 2, "state_size": 16}
_BERT = {"num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 128}
_NEXT = {
    "layer_types": ["linear_attention", "full_attention"],
    "linear_num_value_heads": 4,
    "linear_num_key_heads": 2,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "shared_expert_intermediate_size": 32,
}


def _unet(diffusers: Any) -> Any:
    return diffusers.UNet2DConditionModel(
        sample_size=16,
        block_out_channels=(32, 64),
        down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"),
        up_block_types=("UpBlock2D", "CrossAttnUpBlock2D"),
        cross_attention_dim=32,
        attention_head_dim=8,
        norm_num_groups=8,
        layers_per_block=1,
    )


def _dit(diffusers: Any) -> Any:
    return diffusers.DiTTransformer2DModel(
        num_attention_heads=4,
        attention_head_dim=16,
        num_layers=2,
        sample_size=16,
        num_embeds_ada_norm=1000,
        norm_num_groups=8,
    )


def _sd3(diffusers: Any) -> Any:
    return diffusers.SD3Transformer2DModel(
        sample_size=16,
        num_layers=2,
        attention_head_dim=16,
        num_attention_heads=4,
        joint_attention_dim=32,
        caption_projection_dim=64,
        pooled_projection_dim=32,
        qk_norm="rms_norm",
        pos_embed_max_size=16,
        in_channels=4,
        out_channels=4,
    )


def _wan(diffusers: Any) -> Any:
    return diffusers.WanTransformer3DModel(
        num_attention_heads=4,
        attention_head_dim=16,
        in_channels=4,
        out_channels=4,
        text_dim=32,
        freq_dim=32,
        ffn_dim=64,
        num_layers=2,
    )


def _pool_former(metaformer: Any) -> Any:
    return metaformer.MetaFormer(
        depths=(1, 1, 1, 1),
        dims=(16, 32, 48, 64),
        num_classes=10,
        norm_layers=metaformer.GroupNorm1NoBias,
    )


def _convnext(models: Any) -> Any:
    blocks = [models.convnext.CNBlockConfig(16, 32, 1), models.convnext.CNBlockConfig(32, None, 2)]
    return models.ConvNeXt(blocks, num_classes=10)


def _frozen(models: Any) -> Any:
    return models.resnet18(norm_layer=importlib.import_module("torchvision.ops").FrozenBatchNorm2d)


ARCHITECTURES = [
    _decoder("Llama"),
    _decoder("Mistral"),
    _decoder("Qwen2"),
    _decoder("Qwen3"),
    _decoder("Gemma"),
    _decoder("Gemma2", sliding_window=8),
    _decoder("Gemma3Text", {"Gemma3RMSNorm"}, **_GEMMA3),
    _decoder("Phi", {"LayerNorm"}),
    _decoder("Phi3"),
    replace(
        _decoder("Cohere", {"CohereLayerNorm"}, use_qk_norm=True),
        left={"q_norm": "computes none", "k_norm": "computes none"},  # A weight for each head.
    ),
    _decoder("DeepseekV3", **_DEEPSEEK),
    _decoder("Olmo2"),
    _decoder("Glm4"),
    _decoder("GptOss", num_local_experts=4, num_experts_per_tok=2),
    _decoder("Qwen3Next", {"Qwen3NextRMSNorm", "Qwen3NextRMSNormGated"}, **_NEXT),
    _of_transformers("T5", {"T5LayerNorm"}, _pairs, vocab_size=TOKENS, d_model=WIDTH, **_T5),
    _of_transformers("Mamba", {"MambaRMSNorm"}, _tokens, **_MAMBA),
    _of_transformers("Mamba2", {"Mamba2RMSNorm", "MambaRMSNormGated"}, _tokens, **_MAMBA2),
    _of_transformers("Bert", {"LayerNorm"}, _tokens, vocab_size=TOKENS, hidden_size=64, **_BERT),
    _of_transformers(
        "ConvNext",
        {"LayerNorm", "ConvNextLayerNorm"},
        _pixels,
        hidden_sizes=[16, 32, 48, 64],
        depths=[1, 1, 2, 1],
    ),
    Architecture(
        "diffusers",
        "UNet2DCondition",
        _unet,
        _latents(sample=(2, 4, 16, 16), encoder_hidden_states=(2, 5, 32)),
        {"GroupNorm", "LayerNorm"},
    ),
    Architecture(
        "diffusers",
        "DiT",
        _dit,
        lambda: {**_latents(hidden_states=(2, 4, 16, 16))(), "class_labels": torch.tensor([1, 7])},
        {"LayerNorm"},
    ),
    Architecture(
        "diffusers",
        "SD3",
        _sd3,
        _latents(
            hidden_states=(2, 4, 16, 16),
            encoder_hidden_states=(2, 5, 32),
            pooled_projections=(2, 32),
        ),
        {"LayerNorm", "RMSNorm"},
    ),
    Architecture(
        "diffusers",
        "Wan",
        _wan,
        _latents(hidden_states=(2, 4, 1, 8, 8), encoder_hidden_states=(2, 5, 32)),
        {"FP32LayerNorm", "RMSNorm"},
    ),
    _of_timm("convnext_atto", {"LayerNorm", "LayerNorm2d"}),
    _of_timm("vit_tiny_patch16_224", {"LayerNorm"}, img_size=SIDE),
    _of_timm("mobilenetv3_small_050", {"BatchNormAct2d"}, fused=5),
    _of_timm("resnetv2_50d_gn", {"GroupNormAct"}, fused=15, layers=[1, 1, 1, 1]),
    Architecture(
        "timm.models.metaformer",
        "PoolFormerV2",
        _pool_former,
        _x,
        {"GroupNorm1NoBias", "LayerNorm", "LayerNorm2d", "LayerNorm2dNoBias"},
    ),
    Architecture("torchvision.models", "resnet18", lambda m: m.resnet18(), _x, {"BatchNorm2d"}),
    Architecture("torchvision.models", "convnext", _convnext, _x, {"LayerNorm", "LayerNorm2d"}),
    Architecture(
        "torchvision.models",
        "resnet18_frozen",
        _frozen,
        _x,
        {"FrozenBatchNorm2d"},
    ),
]
