"""The list of good and bad inference requests that a server must answer alike over gRPC and HTTP.

Each case takes a Protocol and returns the arguments of its `infer`.
"""

import ml_dtypes
import numpy as np

RANDOM = np.random.default_rng(17)
SHAPE = (2, 64, 5, 3)  # For instance_norm_64 and group_norm_64_8.


def tensor(*shape, dtype=np.float32, scale=1.0):
    return (scale * RANDOM.normal(size=shape)).astype(dtype)


TYPES = {"FP32": np.float32, "FP64": np.float64, "FP16": np.float16, "BF16": ml_dtypes.bfloat16}


def of(model, *tensors, datatype="FP32", json=None, **options):
    """A case: tensors are arrays, or (name, datatype, array). `json` are the binary_data flags of
    inputs and outputs for HTTP; None: all binary."""
    def make(protocol):
        how = {} if json is None else {"binary_data": json[0]}
        inputs = [protocol.input(one, datatype, **how) if isinstance(one, np.ndarray) else
                  protocol.input(one[2], one[1], one[0], **how) for one in tensors]
        made = dict(options)
        if json is not None and "outputs" not in made:
            made["outputs"] = ["y"]
        if "outputs" in made:
            how = {} if json is None else {"binary_data": json[1]}
            made["outputs"] = [protocol.output(name, **how) for name in made["outputs"]]
        return {"model": model, "inputs": inputs, **made}
    return make


# By name: (whether JSON can say its tensors, the arguments of `of`).
GOOD = {}
for _name, _dtype in TYPES.items():
    for _model, _shape in (("instance_norm_64", SHAPE), ("group_norm_64_8", (1, 64, 7)),
                           ("rms_norm_4096", (3, 4096)), ("batch_norm_64", (1, 64, 2, 2))):
        GOOD[f"{_model} of {_name}"] = (_name != "BF16", (_model, tensor(*_shape, dtype=_dtype)),
                                        {"datatype": _name})
GOOD |= {
    "no sample": (True, ("instance_norm_64", tensor(0, 64, 5)), {}),
    "rows of one element": (True, ("instance_norm_64", tensor(1, 64, 1)), {}),
    "a large tensor": (False, ("instance_norm_64", tensor(4, 64, 64, 64)), {}),
    "large and tiny values": (True, ("layer_norm_1024", np.concatenate(
        [tensor(1, 512, scale=1e30), tensor(1, 512, scale=1e-42)], axis=1)), {}),
    "two inputs": (True, ("fused_linear_512", ("x", "FP32", tensor(3, 512)),
                          ("y", "FP32", tensor(3, 512))), {"outputs": ["out"]}),
    "two inputs in another order": (True, ("fused_linear_512", ("y", "FP32", tensor(3, 512)),
                                           ("x", "FP32", tensor(3, 512))), {"outputs": ["out"]}),
    "outputs on request": (True, ("layer_norm_1024", tensor(2, 1024)),
                           {"outputs": ["rstd", "y", "mean"]}),
    "an output that is not the default": (True, ("layer_norm_1024", tensor(2, 1024)),
                                          {"outputs": ["mean"]}),
    "all outputs": (False, ("add_rms_norm_4096", ("x", "FP32", tensor(2, 4096)),
                            ("residual", "FP32", tensor(2, 4096))), {}),
    "float8 with scales": (False, ("rms_norm_4096_float8", tensor(2, 4096)), {}),
    "an id": (True, ("instance_norm_64", tensor(*SHAPE)), {"request_id": "№ 7 \"ü\"\\"}),
    "a version": (True, ("instance_norm_64", tensor(*SHAPE)), {"model_version": "1"}),
    "a priority and a time limit": (True, ("instance_norm_64", tensor(*SHAPE)),
                                    {"priority": 1, "timeout": 60_000_000}),
    "parameters that mean nothing": (True, ("instance_norm_64", tensor(*SHAPE)), {
        "parameters": {"text": "t", "number": -7, "truth": True}}),
    "a sequence's parameters": (True, ("instance_norm_64", tensor(*SHAPE)), {
        "sequence_id": 3, "sequence_start": True}),
    "NaN and infinities": (False, ("batch_norm_64", np.array(
        [np.nan, np.inf, -np.inf, 0.0] * 64, np.float32).reshape(1, 64, 4)), {}),
}


def case(name, json=None):
    _, arguments, options = GOOD[name]
    return of(*arguments, json=json, **options)


def with_shape(shape, **options):
    """A tensor whose shape is not that of its data."""
    def make(protocol):
        made = of("instance_norm_64", tensor(*SHAPE), **options)(protocol)
        made["inputs"][0].set_shape(shape)
        return made
    return make


def named(**shared):
    def make(protocol):
        return {"model": "instance_norm_64",
                "inputs": [protocol.shared_input(SHAPE, shared["region"], shared["size"],
                                                 shared.get("offset", 0))]}
    return make


X = tensor(*SHAPE)
BAD = {
    "an unknown model": of("nothing", X),
    "an unknown version": of("instance_norm_64", X, model_version="7"),
    "a version that is no number": of("instance_norm_64", X, model_version="new"),
    "version 0": of("instance_norm_64", X, model_version="0"),
    "an unknown output": of("instance_norm_64", X, outputs=["q"]),
    "an output twice": of("instance_norm_64", X, outputs=["y", "y"]),
    "an unknown input": of("instance_norm_64", ("z", "FP32", X)),
    "an input twice": of("instance_norm_64", X, X),
    "an input too many": of("instance_norm_64", X, ("y", "FP32", X)),
    "an input too few": of("fused_linear_512", tensor(3, 512)),
    "inputs of two types": of("fused_linear_512", ("x", "FP32", tensor(3, 512)),
                              ("y", "FP64", tensor(3, 512, dtype=np.float64))),
    "inputs of two shapes": of("fused_linear_512", tensor(3, 512), ("y", "FP32", tensor(2, 512))),
    "other channels": of("instance_norm_64", tensor(1, 63, 5)),
    "one dimension": of("instance_norm_64", tensor(64)),
    "a type that no model takes": of("instance_norm_64", X.astype(np.int32), datatype="INT32"),
    "a type that this model does not take": of(
        "group_norm_320_32_silu_last", tensor(1, 2, 320, dtype=np.float64), datatype="FP64"),
    "texts": of("instance_norm_64", np.array([[b"a"]], np.object_), datatype="BYTES"),
    "fewer elements than the shape has": with_shape([2, 64, 5, 4]),
    "more elements than the shape has": with_shape([2, 64, 5, 2]),
    "a negative dimension": with_shape([2, 64, -5, 3]),
    "a shape that overflows": with_shape([2**62, 64, 2**62]),
    "more dimensions than a tensor has": with_shape([2, 64] + [1] * 40 + [15]),
    "a priority too many": of("instance_norm_64", X, priority=9),
    "a negative time limit": of("instance_norm_64", X, timeout=-1),
    "a long id": of("instance_norm_64", X, request_id="i" * 1025),
    "a long output's name": of("instance_norm_64", X, outputs=["o" * 2000]),
    "a long input's name": of("instance_norm_64", ("n" * 2000, "FP32", X)),
    "classification": lambda protocol: {
        "model": "instance_norm_64", "inputs": [protocol.input(X)],
        "outputs": [protocol.output("y", class_count=2)]},
    "an unknown region": named(region="nothing", size=X.nbytes),
    "an unknown region for an output": lambda protocol: {
        "model": "instance_norm_64", "inputs": [protocol.input(X)],
        "outputs": [protocol.output("y", shared=("nothing", X.nbytes))]},
    "a negative size of shared memory": named(region="nothing", size=-1),
    "a negative offset in shared memory": named(region="nothing", size=X.nbytes, offset=-4),
}
