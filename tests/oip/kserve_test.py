#!/usr/bin/env python3
"""PyPI's kserve, unmodified: its InferenceRESTClient against a real normd.

Health, JSON and binary tensors, errors; results are those of NumPy.
"""

import asyncio

import httpx
import numpy as np
from kserve import InferenceRESTClient, InferInput, InferRequest, RESTConfig
from kserve.protocol.infer_type import RequestedOutput
from served import Server, command_line


async def tests(server):
    url, model = f"http://{server.http}", "rms_norm_4096"
    client = InferenceRESTClient(RESTConfig(protocol="v2", retries=0))
    assert await client.is_server_live(url) is True
    assert await client.is_server_ready(url) is True
    assert await client.is_model_ready(url, model) is True

    x = np.random.default_rng(5).normal(size=(3, 4096)).astype(np.float32)
    results = []
    for binary_in in (True, False):
        for binary_out in (True, False):
            tensor = InferInput("x", list(x.shape), "FP32")
            tensor.set_data_from_numpy(x, binary_data=binary_in)
            request = InferRequest(model, [tensor], request_id="an id", request_outputs=[
                RequestedOutput("y", parameters={"binary_data": binary_out})])
            response = await client.infer(url, request, model_name=model)
            assert response.id == "an id" and response.model_name == model, response
            results.append(response.outputs[0].as_numpy())
            assert results[-1].shape == x.shape, results[-1].shape
    for result in results:
        assert (result == results[0]).all(), "the forms of a request give other bits"
    # The demo model's weights are what is linear in each column.
    normalized = x / np.sqrt((x.astype(np.float64) ** 2).mean(axis=1, keepdims=True) + 1e-6)
    weights = (results[0] * normalized).sum(axis=0) / (normalized**2).sum(axis=0)
    assert np.abs(weights * normalized - results[0]).max() < 1e-4, "not RMSNorm"

    data = {"inputs": [{"name": "x", "shape": [1, 4096], "datatype": "FP32", "data": [0.5] * 4096}]}
    response = await client.infer(url, data, model_name=model)
    assert response.outputs[0].shape == [1, 4096], response
    try:
        await client.infer(url, data, model_name="nothing")
        raise AssertionError("an unknown model was served")
    except httpx.HTTPStatusError as error:
        assert error.response.status_code == 404 and "nothing" in str(error), str(error)


def main():
    with Server(command_line(__doc__).parse_args()) as server:
        asyncio.run(tests(server))


if __name__ == "__main__":
    main()
