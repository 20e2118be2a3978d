"""The operators' schemas and results; the native kernels read the arguments in this order.

`axis` and `axes` are the first of the normalized dimensions and the number of adjacent ones;
`more_axes` has a bit for each further one, 1 << its number. Activations, statistics and so on are
the numbers of kernels/norm_c.h; normd.torch.functional has their names.

With axes, the dimensions before the first one are the samples: gate, scale and shift are [samples,
normalized elements]. Results with one element per row have x's dimensions beside the normalized
ones, then the groups, if there are several.
"""

from __future__ import annotations

_AFFINE = "Tensor? weight=None, Tensor? bias=None"
_ACTIVATION = "int activation=0, float slope=0.01"
_EPS = "float eps=1e-05"
_AXES = "int axis, int axes"
_MORE = "int more_axes=0"
_LINEAR = "float eps, bool add, bool multiply, int activation, float slope, int precision"

# {operator: (arguments, names of the results)}
NORMS: dict[str, tuple[str, tuple[str, ...]]] = {
    "instance_norm": (
        f"Tensor x, {_AFFINE}, Tensor? running_mean=None, Tensor? running_var=None, "
        f"{_EPS}, {_ACTIVATION}",
        ("out",),
    ),
    "batch_norm": (
        f"Tensor x, Tensor running_mean, Tensor running_var, {_AFFINE}, {_EPS}, {_ACTIVATION}",
        ("out",),
    ),
    "group_norm": (f"Tensor x, int num_groups, {_AFFINE}, {_EPS}, {_ACTIVATION}", ("out",)),
    "layer_norm": (f"Tensor x, {_AXES}, {_AFFINE}, {_EPS}, {_ACTIVATION}, {_MORE}", ("out",)),
    "rms_norm": (
        f"Tensor x, {_AXES}, Tensor? weight=None, {_EPS}, float weight_offset=0., {_ACTIVATION}, "
        f"{_MORE}",
        ("out",),
    ),
    "add_layer_norm": (
        f"Tensor x, Tensor residual, {_AXES}, {_AFFINE}, {_EPS}, {_ACTIVATION}",
        ("out", "residual_out"),
    ),
    "add_rms_norm": (
        f"Tensor x, Tensor residual, {_AXES}, Tensor? weight=None, {_EPS}, "
        f"float weight_offset=0., {_ACTIVATION}",
        ("out", "residual_out"),
    ),
    "normalize": (
        f"Tensor x, int form, {_AXES}, int groups, int statistics, {_EPS}, {_AFFINE}, "
        "Tensor? running_mean=None, Tensor? running_var=None, Tensor? input_bias=None, "
        "Tensor? residual=None, Tensor? gate=None, Tensor? other=None, Tensor? scale=None, "
        "Tensor? shift=None, Tensor? style_index=None, Tensor? style_weights=None, "
        "Tensor? style=None, int combine_input=0, int combine_output=0, float weight_offset=0., "
        f"float scale_offset=1., {_ACTIVATION}, bool write_residual=False, "
        "bool statistics_out=False, int quantization=0, int quantization_scale=0, "
        f"float output_scale=0., {_MORE}",
        ("out", "residual_out", "mean", "rstd", "scales"),
    ),
}

LINEAR = (
    "Tensor x, Tensor? y, Tensor prepared, int in_features, int out_features, " + _LINEAR,
    ("out",),
)
LINEAR_PREPARE = f"Tensor weight, Tensor? bias, int dtype, {_LINEAR}"


def functional(name: str, arguments: str, results: tuple[str, ...]) -> str:
    """The schema that returns new tensors."""
    returned = ", ".join(["Tensor"] * len(results))
    return f"{name}({arguments}) -> " + (returned if len(results) == 1 else f"({returned})")


def out_variant(name: str, arguments: str, results: tuple[str, ...]) -> str:
    """The schema that writes to the caller's tensors and returns nothing.

    Results after the first may be None where the call does not have them.
    """
    others = "".join(
        f", Tensor({letter}!)? {each}=None"
        for letter, each in zip("bcde", results[1:], strict=False)
    )
    return f"{name}.out({arguments}, *, Tensor(a!) {results[0]}{others}) -> ()"
