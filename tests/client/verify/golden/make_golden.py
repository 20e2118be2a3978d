#!/usr/bin/env python3
"""Writes golden.json: what PyTorch computes in float64 for every operation, for golden_test.cc.

    python3 -m venv venv && venv/bin/pip install torch
    venv/bin/python tests/client/verify/golden/make_golden.py

A case has its config in text format, the tensors of params.safetensors, the inputs, and every
output that the model can give. A tensor is a pair of its dimensions and its elements. Inputs are
multiples of 1/8, so that a tensor of float32 holds them too. Quantized outputs are rounded; others
are not.
"""

import json
import pathlib

import torch
import torch.nn.functional as F

HERE = pathlib.Path(__file__).resolve().parent
MACHINE_EPSILON = torch.finfo(torch.float64).eps
ACTIVATIONS = {
    "NONE": lambda v: v,
    "RELU": F.relu,
    "LEAKY_RELU": F.leaky_relu,
    "SILU": F.silu,
    "GELU_ERF": F.gelu,
    "GELU_TANH": lambda v: F.gelu(v, approximate="tanh"),
}
LARGEST = {"INT8": 127, "FLOAT8_E4M3": 448}
cases = []


def some(*shape):
    """Multiples of 1/8 between -3 and 3."""
    return torch.randint(-24, 25, shape).double() / 8


def above_zero(*shape):
    return torch.randint(1, 25, shape).double() / 8


def written(tensor):
    values = [float(f"{v:.11g}") for v in tensor.double().flatten().tolist()]
    return [list(tensor.shape), [int(v) if v == int(v) else v for v in values]]


def add(config, inputs, outputs, parameters=None):
    case = {"config": config}
    groups = {"parameters": parameters or {}, "inputs": inputs, "outputs": outputs}
    for key, tensors in groups.items():
        case[key] = {name: written(tensor) for name, tensor in tensors.items()}
    cases.append(case)


def quantize(y, dtype, scale):
    if dtype == "INT8":
        return (y / scale).round().clamp(-128, 127)
    return (y / scale).clamp(-448, 448).to(torch.float8_e4m3fn).double()


def row_scale(y, dtype, dims):
    return (y.abs().amax(dims, keepdim=True) / LARGEST[dtype]).clamp_min(2.0**-126)


# The outputs on request: statistics of the rows, which the elements of `dims` share.


def mean_variance(x, dims, eps):
    variance, mean = torch.var_mean(x, dims, correction=0, keepdim=True)
    return {"mean": mean, "rstd": 1 / torch.sqrt(variance + eps)}


def mean_square(x, dims, eps):
    return {"rstd": torch.rsqrt(x.square().mean(dims, keepdim=True) + eps)}


def of_groups(x, groups, eps):
    rows = x.reshape(x.shape[0], groups, -1)
    return {k: v.reshape(x.shape[0], groups) for k, v in mean_variance(rows, -1, eps).items()}


def last(x):
    """[N, C, *] as [N, *, C]."""
    return x.movedim(1, -1)


def channel_norms():
    x = some(2, 4, 3)
    weight, bias, mean, variance = some(4), some(4), some(4), above_zero(4)
    affine = {"weight": weight, "bias": bias}
    running = {"running_mean": mean, "running_var": variance}
    statistics = of_groups(x, 4, 1e-5)

    add("instance_norm { channels: 4 }", {"x": x}, {"y": F.instance_norm(x), **statistics})
    y = F.instance_norm(x, weight=weight, bias=bias, eps=0.5)
    add("instance_norm { channels: 4 affine: true eps: 0.5 }", {"x": x},
        {"y": y, **of_groups(x, 4, 0.5)}, affine)
    y = F.instance_norm(x, weight=weight, bias=bias)
    add("instance_norm { channels: 4 affine: true } layout: CHANNELS_LAST", {"x": last(x)},
        {"y": last(y), **statistics}, affine)
    y = F.instance_norm(x, mean, variance, use_input_stats=False)
    add("instance_norm { channels: 4 use_running_stats: true }", {"x": x}, {"y": y}, running)
    y = F.instance_norm(x, mean, variance, weight, bias, use_input_stats=False)
    add("instance_norm { channels: 4 use_running_stats: true affine: true }", {"x": x}, {"y": y},
        {**affine, **running})

    statistics = of_groups(x, 2, 1e-5)
    y = F.group_norm(x, 2, weight, bias)
    add("group_norm { channels: 4 groups: 2 }", {"x": x}, {"y": y, **statistics}, affine)
    add("group_norm { channels: 4 groups: 2 } layout: CHANNELS_LAST", {"x": last(x)},
        {"y": last(y), **statistics}, affine)
    y = F.group_norm(x, 2, eps=0.5)
    add("group_norm { channels: 4 groups: 2 affine: false eps: 0.5 }", {"x": x},
        {"y": y, **of_groups(x, 2, 0.5)})
    y = F.group_norm(x, 2, weight)
    add('group_norm { channels: 4 groups: 2 } parameter_prefix: "mid." '
        'parameter_names { key: "weight" value: "g" }',
        {"x": x}, {"y": y, **statistics}, {"mid.g": weight})

    y = F.batch_norm(x, mean, variance, weight, bias)
    add("batch_norm { channels: 4 }", {"x": x}, {"y": y}, {**affine, **running})
    add("batch_norm { channels: 4 } layout: CHANNELS_LAST", {"x": last(x)}, {"y": last(y)},
        {**affine, **running})
    y = F.batch_norm(x, mean, variance, eps=0.5)
    add("batch_norm { channels: 4 affine: false eps: 0.5 }", {"x": x}, {"y": y}, running)


def over_axes(x, axes, norm):
    """norm() of x with the axes at the end, and back."""
    end = tuple(range(-len(axes), 0))
    return norm(x.movedim(axes, end)).movedim(end, axes)


def shape_norms():
    x, shape = some(3, 2, 4), (2, 4)
    weight, bias = some(*shape), some(*shape)
    affine = {"weight": weight, "bias": bias}
    dims = (-2, -1)

    statistics = mean_variance(x, dims, 1e-5)
    layer = "layer_norm { normalized_shape: [2, 4] "
    y = F.layer_norm(x, shape, weight, bias)
    add(layer + "}", {"x": x}, {"y": y, **statistics}, affine)
    y = F.layer_norm(x, shape, None, bias)
    add(layer + "}", {"x": x}, {"y": y, **statistics}, {"bias": bias})
    y = F.layer_norm(x, shape, eps=0.5)
    add(layer + "affine: false eps: 0.5 }", {"x": x}, {"y": y, **mean_variance(x, dims, 0.5)})
    for name, activation in ACTIVATIONS.items():
        add(layer + "affine: false } activation: " + name, {"x": x},
            {"y": activation(F.layer_norm(x, shape)), **statistics})
    y = F.leaky_relu(F.layer_norm(x, shape), 0.25)
    add(layer + "affine: false } activation: LEAKY_RELU leaky_slope: 0.25", {"x": x},
        {"y": y, **statistics})

    rms = "rms_norm { normalized_shape: [2, 4] "
    statistics = mean_square(x, dims, MACHINE_EPSILON)
    small = x / 2**28  # The machine epsilon counts here.
    add(rms + "affine: false }", {"x": small},
        {"y": F.rms_norm(small, shape), **mean_square(small, dims, MACHINE_EPSILON)})
    add(rms + "}", {"x": x}, {"y": F.rms_norm(x, shape, weight), **statistics}, {"weight": weight})
    y = F.rms_norm(x, shape, weight + 1, eps=0.5)
    add(rms + "eps: 0.5 weight_offset: 1 }", {"x": x}, {"y": y, **mean_square(x, dims, 0.5)},
        {"weight": weight})

    for axes in ((1,), (2, 3), (1, 3), (-4, -2)):
        x = some(2, 3, 2, 4)
        shape = tuple(x.shape[axis] for axis in axes)
        weight, bias = some(*shape), some(*shape)
        fields = f"normalized_shape: {list(shape)} axes: {list(axes)} "
        y = over_axes(x, axes, lambda v: F.layer_norm(v, shape, weight, bias))
        add(f"layer_norm {{ {fields}}}", {"x": x}, {"y": y, **mean_variance(x, axes, 1e-5)},
            {"weight": weight, "bias": bias})
        y = over_axes(x, axes, lambda v: F.rms_norm(v, shape, weight, 0.5))
        add(f"rms_norm {{ {fields}eps: 0.5 }}", {"x": x}, {"y": y, **mean_square(x, axes, 0.5)},
            {"weight": weight})
        norm = torch.linalg.vector_norm(x, 2, axes, keepdim=True)
        add(f"lp_normalize {{ {fields}}}", {"x": x}, {"y": x / norm, "rstd": 1 / norm})


def lp_normalize():
    x = some(3, 2, 4)
    x[1] = 0  # eps counts for this row.
    for p in (None, 1, 2, float("inf")):
        for eps in (None, 0.5):
            flat = x.flatten(1)
            kwargs = {} if eps is None else {"eps": eps}
            y = F.normalize(flat, 2 if p is None else p, -1, **kwargs).reshape(x.shape)
            norm = torch.linalg.vector_norm(flat, 2 if p is None else p, -1)
            rstd = 1 / norm.clamp_min(1e-12 if eps is None else eps)
            fields = ("" if p is None else f"p: {p} ") + ("" if eps is None else f"eps: {eps} ")
            add("lp_normalize { normalized_shape: [2, 4] " + fields + "}", {"x": x},
                {"y": y, "rstd": rstd.reshape(3, 1, 1)})


def sums():
    x, residual, weight, bias = some(3, 4), some(3, 4), some(4), some(4)
    inputs = {"x": x, "residual": residual}
    v = x + residual
    rms, layer = "add_rms_norm { normalized_shape: 4 ", "add_layer_norm { normalized_shape: 4 "

    def rows(y, statistics):
        return {"y": y, "residual_out": v, **statistics}

    add(rms + "}", inputs,
        rows(F.rms_norm(v, (4,), weight), mean_square(v, -1, MACHINE_EPSILON)), {"weight": weight})
    add(rms + "affine: false eps: 0.5 }", inputs,
        rows(F.rms_norm(v, (4,), None, 0.5), mean_square(v, -1, 0.5)))
    add(rms + "weight_offset: 1 eps: 0.5 } activation: SILU", inputs,
        rows(F.silu(F.rms_norm(v, (4,), weight + 1, 0.5)), mean_square(v, -1, 0.5)),
        {"weight": weight})
    add(layer + "}", inputs,
        rows(F.layer_norm(v, (4,), weight, bias), mean_variance(v, -1, 1e-5)),
        {"weight": weight, "bias": bias})
    add(layer + "affine: false eps: 0.5 }", inputs,
        rows(F.layer_norm(v, (4,), eps=0.5), mean_variance(v, -1, 0.5)))


def gated_rms_norm():
    x, gate, weight = some(3, 6), some(3, 6), some(6)
    inputs = {"x": x, "gate": gate}
    gated = x * F.silu(gate)
    norm = "gated_rms_norm { normalized_shape: 6 "
    add(norm + "}", inputs,
        {"y": F.rms_norm(gated, (6,), weight), **mean_square(gated, -1, MACHINE_EPSILON)},
        {"weight": weight})
    add(norm + "affine: false eps: 0.5 }", inputs,
        {"y": F.rms_norm(gated, (6,), eps=0.5), **mean_square(gated, -1, 0.5)})
    y = F.relu(F.rms_norm(x, (6,), weight + 1, 0.5)) * F.silu(gate)
    add(norm + "norm_before_gate: true eps: 0.5 weight_offset: 1 } activation: RELU", inputs,
        {"y": y, **mean_square(x, -1, 0.5)}, {"weight": weight})
    groups = gated.reshape(3, 2, 3)
    add(norm + "group_size: 3 eps: 0.5 }", inputs,
        {"y": F.rms_norm(groups, (3,), eps=0.5).reshape(3, 6) * weight,
         "rstd": mean_square(groups, -1, 0.5)["rstd"].reshape(3, 2)},
        {"weight": weight})


def adaptive_norms():
    x, residual = some(2, 3, 4), some(2, 3, 4)
    scale, shift, gate, weight, bias = some(2, 4), some(2, 4), some(2, 4), some(4), some(4)
    modulation = {"scale": scale, "shift": shift}
    affine = {"weight": weight, "bias": bias}

    def modulated(y, offset=1.0):
        return y * (offset + scale[:, None]) + shift[:, None]

    layer = "adaptive_layer_norm { features: 4 "
    y = modulated(F.layer_norm(x, (4,)))
    add(layer + "}", {"x": x, **modulation}, {"y": y, **mean_variance(x, -1, 1e-5)})
    y = modulated(F.layer_norm(x, (4,), weight, bias, 0.5), 0.25)
    add(layer + "affine: true eps: 0.5 scale_offset: 0.25 }", {"x": x, **modulation},
        {"y": y, **mean_variance(x, -1, 0.5)}, affine)
    v = residual + gate[:, None] * x
    y = F.silu(modulated(F.layer_norm(v, (4,))))
    add(layer + "gated_residual: true } activation: SILU",
        {"x": x, "residual": residual, "gate": gate, **modulation},
        {"y": y, "residual_out": v, **mean_variance(v, -1, 1e-5)})

    group = "adaptive_group_norm { channels: 4 groups: 2 "
    x = some(2, 4, 3)
    y = modulated(last(F.group_norm(x, 2)))
    add(group + "} layout: CHANNELS_LAST", {"x": last(x), **modulation},
        {"y": y, **of_groups(x, 2, 1e-5)})
    y = modulated(last(F.group_norm(x, 2, weight, bias, 0.5)), 0.25).movedim(-1, 1)
    add(group + "affine: true eps: 0.5 scale_offset: 0.25 }", {"x": x, **modulation},
        {"y": y, **of_groups(x, 2, 0.5)}, affine)


def styles():
    x, style = some(2, 4, 3), some(2, 4, 5)
    for eps, field in ((1e-5, ""), (0.5, "eps: 0.5 ")):
        variance, mean = torch.var_mean(style, -1, correction=0, keepdim=True)
        y = torch.sqrt(variance + eps) * F.instance_norm(x, eps=eps) + mean
        add("adaptive_instance_norm { channels: 4 " + field + "}", {"x": x, "style": style},
            {"y": y, **of_groups(x, 4, eps)})

    weight, bias, index = some(3, 4), some(3, 4), torch.tensor([2, 0])
    mix = some(2, 3)
    affine = {"weight": weight, "bias": bias}
    conditional = "conditional_instance_norm { channels: 4 styles: 3 "
    y = F.instance_norm(x) * (mix @ weight)[:, :, None] + (mix @ bias)[:, :, None]
    add(conditional + "}", {"x": x, "style_weights": mix},
        {"y": y, **of_groups(x, 4, 1e-5)}, affine)
    y = F.instance_norm(x, eps=0.5) * weight[index][:, :, None] + bias[index][:, :, None]
    add(conditional + "by_index: true eps: 0.5 }", {"x": x, "style_index": index},
        {"y": y, **of_groups(x, 4, 0.5)}, affine)


def linear_norm():
    x, y = some(2, 3, 4), some(2, 3, 5)
    weight, bias = some(5, 4), some(5)
    parameters = {"linear.weight": weight, "linear.bias": bias}
    norm = "linear_norm { in_features: 4 out_features: 5 "
    n = F.layer_norm(F.linear(x, weight, bias), (5,))
    add(norm + "}", {"x": x}, {"out": n}, parameters)
    add(norm + "bias: false eps: 0.5 precision: PRECISION_TF32 }", {"x": x},
        {"out": F.layer_norm(F.linear(x, weight), (5,), eps=0.5)}, {"linear.weight": weight})
    for epilogue, out in (("add: true", n + y), ("multiply: true", n * y),
                          ("add: true multiply: true", (n + y) * y)):
        add(norm + "epilogue { " + epilogue + " } } activation: GELU_ERF", {"x": x, "y": y},
            {"out": F.gelu(out)}, parameters)


def quantization():
    x = some(2, 2, 4)
    y = F.rms_norm(x, (2, 4), eps=0.5)
    statistics = mean_square(x, (-2, -1), 0.5)
    rms = "rms_norm { normalized_shape: [2, 4] affine: false eps: 0.5 } "
    for dtype in LARGEST:
        quantized = rms + "quantization { dtype: " + dtype
        # A scale with which some are cut.
        scale = {"INT8": 0.01, "FLOAT8_E4M3": 0.003}[dtype]
        add(quantized + f" scale: {scale} }}", {"x": x},
            {"y": quantize(y, dtype, scale), **statistics})
        add(quantized + f" scales: PER_TENSOR scale: 0.5 }} activation: SILU", {"x": x},
            {"y": quantize(F.silu(y), dtype, 0.5), **statistics})
        scale = row_scale(y, dtype, (-2, -1))
        add(quantized + " scales: PER_ROW }", {"x": x},
            {"y": quantize(y, dtype, scale), "y_scale": scale, **statistics})

    x = some(2, 130)
    y = F.rms_norm(x, (130,), eps=0.5)
    blocks = y.split(128, -1)
    scales = [row_scale(block, "INT8", -1) for block in blocks]
    q = torch.cat([quantize(block, "INT8", scale) for block, scale in zip(blocks, scales)], -1)
    add("rms_norm { normalized_shape: 130 affine: false eps: 0.5 } "
        "quantization { dtype: INT8 scales: PER_BLOCK }",
        {"x": x}, {"y": q, "y_scale": torch.cat(scales, -1), **mean_square(x, -1, 0.5)})

    x = some(2, 3, 4)  # Rows of positions: each has elements that are apart.
    y = F.layer_norm(x.movedim(1, -1), (3,)).movedim(-1, 1)
    scale = row_scale(y, "INT8", 1)
    add("layer_norm { normalized_shape: 3 axes: 1 affine: false } "
        "quantization { dtype: INT8 scales: PER_ROW }",
        {"x": x}, {"y": quantize(y, "INT8", scale), "y_scale": scale, **mean_variance(x, 1, 1e-5)})
    y = F.group_norm(x, 3)
    scale = row_scale(y, "INT8", -1)
    add("group_norm { channels: 3 groups: 3 affine: false } layout: CHANNELS_LAST "
        "quantization { dtype: INT8 scales: PER_ROW }",
        {"x": last(x)},
        {"y": last(quantize(y, "INT8", scale)), "y_scale": scale.squeeze(-1),
         **of_groups(x, 3, 1e-5)})


def scale_norm():
    x, g = some(3, 2, 4), torch.tensor([-1.75])
    x[1] = 0
    x[2] /= 2**20  # eps counts for these two rows.
    for eps, field in ((1e-5, ""), (0.5, "eps: 0.5 ")):
        rstd = 1 / torch.linalg.vector_norm(x, 2, (-2, -1), keepdim=True).clamp_min(eps)
        add("scale_norm { normalized_shape: [2, 4] " + field + "}", {"x": x},
            {"y": g * x * rstd, "rstd": rstd}, {"g": g})
    add('scale_norm { normalized_shape: [2, 4] eps: 0.5 } activation: GELU_ERF '
        'parameter_names { key: "g" value: "scale" }',
        {"x": x}, {"y": F.gelu(g * x * rstd), "rstd": rstd}, {"scale": g.squeeze()})


def main():
    torch.manual_seed(1)
    for write in (channel_norms, shape_norms, lp_normalize, sums, gated_rms_norm, adaptive_norms,
                  styles, linear_norm, quantization, scale_norm):
        write()
    lines = ",\n".join(json.dumps(case, separators=(",", ":")) for case in cases)
    text = f'{{"torch":"{torch.__version__}","cases":[\n{lines}\n]}}\n'
    (HERE / "golden.json").write_text(text)


if __name__ == "__main__":
    main()
