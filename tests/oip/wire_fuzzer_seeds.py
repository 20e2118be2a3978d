#!/usr/bin/env python3
"""Writes seeds of wire_fuzzer: messages that PyPI's tritonclient sends, unmodified.

    wire_fuzzer_seeds.py tests/fuzz/corpus/wire_fuzzer   # in an environment that has tritonclient[grpc]

A server that answers nothing but errors records each ModelInfer and ModelStreamInfer message as it
arrives. Before each comes the fuzzer's own byte: which message it is, and no cuts.
"""

import asyncio
import concurrent.futures
import pathlib
import sys
import threading

import grpc
import ml_dtypes
import numpy as np
import tritonclient.grpc as triton
import tritonclient.grpc.aio as triton_aio
from tritonclient.grpc import service_pb2
from tritonclient.utils import InferenceServerException

REQUEST = bytes([2 << 3])  # As kMessages in wire_fuzzer.cc.
RESPONSE = bytes([3 << 3])
LIMIT_S = 20


class Recorder(grpc.GenericRpcHandler):
    """Keeps the messages of every call, of which it carries out none."""

    def __init__(self):
        self.messages = set()
        self.came = threading.Semaphore(0)

    def service(self, details):
        return grpc.stream_stream_rpc_method_handler(self.answer)  # In bytes.

    def answer(self, messages, context):
        for message in messages:
            self.messages.add(message)
            self.came.release()
        context.abort(grpc.StatusCode.UNIMPLEMENTED, "recorded")
        yield b""


def make_input(x, datatype="FP32", name="x"):
    tensor = triton.InferInput(name, list(x.shape), datatype)
    tensor.set_data_from_numpy(x)
    return tensor


def shared_input():
    tensor = triton.InferInput("x", [1, 4], "FP32")
    tensor.set_shared_memory("region", 16, offset=64)
    return tensor


def shared_output():
    output = triton.InferRequestedOutput("y")
    output.set_shared_memory("region", 16)
    return output


def requests():
    """Keyword arguments of infer: everything that it can put into a message."""
    x = np.arange(4, dtype=np.float32).reshape(1, 4)
    y = triton.InferRequestedOutput("y")
    yield {"inputs": [make_input(x)]}
    for datatype, dtype in (("FP64", np.float64), ("FP16", np.float16), ("BF16", ml_dtypes.bfloat16),
                            ("INT32", np.int32), ("INT64", np.int64), ("BOOL", np.bool_)):
        yield {"inputs": [make_input(x.astype(dtype), datatype)], "outputs": [y]}
    yield {"inputs": [make_input(np.array([b"a", b"text"], dtype=np.object_), "BYTES")]}
    yield {"inputs": [make_input(x), make_input(x, name="residual")], "outputs": [y]}
    yield {"inputs": [make_input(np.zeros((0, 4), np.float32))]}
    yield {"inputs": [make_input(x)], "model_version": "1", "request_id": "an id", "priority": 1,
           "timeout": 10_000_000, "parameters": {"text": "t", "number": -7, "truth": True}}
    yield {"inputs": [make_input(x)], "sequence_id": 2**40, "sequence_start": True}
    yield {"inputs": [make_input(x)], "sequence_id": "text", "sequence_end": True}
    yield {"inputs": [make_input(x)], "outputs": [triton.InferRequestedOutput("y", class_count=3)]}
    yield {"inputs": [shared_input()], "outputs": [shared_output()]}


def record(address, recorder):
    with triton.InferenceServerClient(address) as client:
        for arguments in requests():
            try:
                client.infer("instance_norm_64", **arguments)
            except InferenceServerException:
                pass
        client.start_stream(callback=lambda result, error: None)
        for arguments in requests():
            client.async_stream_infer("group_norm", enable_empty_final_response=True, **arguments)
            if not recorder.came.acquire(timeout=LIMIT_S):
                sys.exit("a message has not arrived")
        client.stop_stream()

    async def with_asyncio():
        async with triton_aio.InferenceServerClient(address) as client:
            for arguments in requests():
                try:
                    await client.infer("m", **arguments)
                except InferenceServerException:
                    pass

    asyncio.run(with_asyncio())


def typed_contents():
    """Contents that the client itself does not send, but its classes can."""
    for field, datatype, value in (("fp32", "FP32", 1.5), ("fp64", "FP64", -2.5), ("int", "INT32", -1),
                                   ("int64", "INT64", -1), ("uint", "UINT32", 7), ("bool", "BOOL", True),
                                   ("uint64", "UINT64", 2**63), ("bytes", "BYTES", b"text")):
        request = service_pb2.ModelInferRequest(model_name="m")
        tensor = request.inputs.add(name="x", datatype=datatype, shape=[2, 1])
        getattr(tensor.contents, f"{field}_contents").extend([value, value])
        yield request.SerializeToString()


def responses():
    response = service_pb2.ModelInferResponse(model_name="m", model_version="1", id="an id")
    response.parameters["triton_final_response"].bool_param = True
    response.outputs.add(name="y", datatype="FP32", shape=[1, 2])
    yield response.SerializeToString() + b"\x32\x08" + bytes(8)  # raw_output_contents
    response.outputs[0].contents.fp32_contents.extend([1.0, 2.0])
    yield response.SerializeToString()


def main():
    if len(sys.argv) != 2:
        sys.exit(f"usage: {sys.argv[0]} FOLDER")
    folder = pathlib.Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    recorder = Recorder()
    server = grpc.server(concurrent.futures.ThreadPoolExecutor(4))
    server.add_generic_rpc_handlers([recorder])
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    record(f"127.0.0.1:{port}", recorder)
    server.stop(None)
    seeds = [REQUEST + message for message in (*sorted(recorder.messages), *typed_contents())]
    seeds += [RESPONSE + message for message in responses()]
    for number, seed in enumerate(seeds):
        (folder / f"tritonclient_{number:02}").write_bytes(seed)
    print(f"{len(seeds)} seeds in {folder}")


if __name__ == "__main__":
    main()
