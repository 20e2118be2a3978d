"""Outputs beside y: quantized values with their scales, statistics on request."""

from __future__ import annotations

import numpy as np
import pytest

import normd

X = np.random.default_rng(3).standard_normal((6, 4096)).astype("f4")


def float8(array):
    """The values of float8 E4M3 elements, which are raw bytes without ml_dtypes."""
    bits = array.view("u1").astype(int)
    mantissa, exponent = bits & 7, bits >> 3 & 15
    values = np.where(exponent == 0, mantissa * 2.0**-9, (8 + mantissa) * 2.0 ** (exponent - 10.0))
    return np.where(bits & 128, -values, values)


def test_quantized_values_come_with_their_scales(client):
    outputs = client.call("rms_norm_4096_float8", X).outputs
    assert list(outputs) == ["y", "y_scale"]
    assert outputs["y"].dtype.itemsize == 1
    assert outputs["y"].shape == X.shape
    assert outputs["y_scale"].shape == (6, 1)
    assert outputs["y_scale"].dtype == np.float32
    # The weight is bfloat16 between 0.5 and 1.5; x over its root mean square times it is y.
    y = float8(outputs["y"]) * outputs["y_scale"]
    weight = y / (X / np.sqrt((X.astype("f8") ** 2).mean(-1, keepdims=True) + 1e-6))
    large = np.abs(X) > 1  # Their quantized values have three bits of mantissa.
    assert np.all(np.abs(float8(outputs["y"])).max(-1) == 448)
    assert 0.5 / 1.07 < weight[large].min() < weight[large].max() < 1.5 * 1.07


def test_streams_carry_several_types(client):
    whole = client.call("rms_norm_4096_float8", X).outputs
    streamed = client.normalize_stream("rms_norm_4096_float8", X).outputs
    for name, output in whole.items():
        assert streamed[name].tobytes() == output.tobytes()


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
def test_statistics_come_on_request(client, dtype):
    x = X.reshape(-1, 1024).astype(dtype)
    assert list(client.call("layer_norm_1024", x).outputs) == ["y"]
    out = {"y": None, "mean": None, "rstd": None}
    outputs = client.call("layer_norm_1024", x, out=out).outputs
    assert list(outputs) == ["y", "mean", "rstd"]
    assert outputs["y"].tobytes() == client.normalize("layer_norm_1024", x).tobytes()
    assert outputs["mean"].dtype == (np.float64 if dtype == "float64" else np.float32)
    exact = x.astype("f8")
    assert np.allclose(outputs["mean"], exact.mean(-1, keepdims=True), atol=1e-6)
    assert np.allclose(outputs["rstd"], (exact.var(-1, keepdims=True) + 1e-5) ** -0.5, rtol=1e-5)
    streamed = client.normalize_stream("layer_norm_1024", x, out={"rstd": None}).outputs
    assert list(streamed) == ["rstd"]
    assert streamed["rstd"].tobytes() == outputs["rstd"].tobytes()


def test_an_output_that_is_not_there_is_refused(client):
    with pytest.raises(normd.InvalidArgumentError) as error:
        client.call("rms_norm_4096", X, out={"mean": None})
    assert error.value.field == "outputs[0].name"


def test_models_tell_what_comes_on_request(client):
    outputs = {each.name: each for each in client.get_model("rms_norm_4096_float8").outputs}
    assert outputs["y"].dtype == "float8_e4m3"
    assert outputs["y_scale"].shape == (-2, 1)
    assert outputs["rstd"].on_request
    assert outputs["rstd"].dtype_of_float64 == "float64"
