"""normd's kernels as PyTorch operators, functions and modules, for inference.

    import normd.torch

    report = normd.torch.replace(model.eval())
    with torch.inference_mode():
        y = model(x)

The operators are torch.ops.normd.*, on the CPU and on CUDA. torch.compile takes functions and
layers without a graph break, and CUDA graphs capture them. docs/pytorch.md has the list. It needs
PyTorch 2.10.
"""

from normd.torch._adapters import Adapted
from normd.torch._decompositions import decompositions
from normd.torch._library import QUANTIZATION_BLOCK
from normd.torch._replace import Report, replace, restore
from normd.torch.functional import (
    batch_norm,
    group_norm,
    instance_norm,
    layer_norm,
    layer_norm_with_statistics,
    lp_normalize,
    rms_norm,
)
from normd.torch.fused import (
    adaptive_group_norm,
    adaptive_instance_norm,
    adaptive_layer_norm,
    add_adaptive_layer_norm,
    add_layer_norm,
    add_rms_norm,
    conditional_instance_norm,
    gated_rms_norm,
)
from normd.torch.linear import LinearNorm
from normd.torch.modules import (
    AddLayerNorm,
    AddRMSNorm,
    BatchNorm1d,
    BatchNorm2d,
    BatchNorm3d,
    GroupNorm,
    InstanceNorm1d,
    InstanceNorm2d,
    InstanceNorm3d,
    LayerNorm,
    RMSNorm,
)
from normd.torch.quantized import Quantized, quantized_layer_norm, quantized_rms_norm

__all__ = [
    "QUANTIZATION_BLOCK",
    "Adapted",
    "AddLayerNorm",
    "AddRMSNorm",
    "BatchNorm1d",
    "BatchNorm2d",
    "BatchNorm3d",
    "GroupNorm",
    "InstanceNorm1d",
    "InstanceNorm2d",
    "InstanceNorm3d",
    "LayerNorm",
    "LinearNorm",
    "Quantized",
    "RMSNorm",
    "Report",
    "adaptive_group_norm",
    "adaptive_instance_norm",
    "adaptive_layer_norm",
    "add_adaptive_layer_norm",
    "add_layer_norm",
    "add_rms_norm",
    "batch_norm",
    "conditional_instance_norm",
    "decompositions",
    "gated_rms_norm",
    "group_norm",
    "instance_norm",
    "layer_norm",
    "layer_norm_with_statistics",
    "lp_normalize",
    "quantized_layer_norm",
    "quantized_rms_norm",
    "replace",
    "restore",
    "rms_norm",
]
