#!/usr/bin/env python3
"""PyPI's tritonclient, unmodified, against a real normd.

Synchronous, asyncio and streaming calls; every type; raw and typed contents; load, unload,
statistics, metadata, health and errors. Results are held against NumPy in float64, and against each
other bit by bit. Runs itself again in a virtual environment that it makes below --venv; exits with
77, which ctest shows as skipped, where PyPI cannot be had.
"""

import argparse
import asyncio
import base64
import os
import pathlib
import queue
import subprocess
import sys

from served import LIMIT_S, SKIPPED, Server, environment

PACKAGES = ["tritonclient[grpc]>=2.73,<3"]
SHAPE = (2, 64, 5, 3)  # For instance_norm_64 and group_norm_64_8.


def tests(options):
    # In the virtual environment.
    import ml_dtypes
    import numpy as np
    import tritonclient.grpc as triton
    import tritonclient.grpc.aio as triton_aio
    import tritonclient.utils.shared_memory as triton_shm
    from tritonclient.grpc import service_pb2
    from tritonclient.utils import InferenceServerException

    random = np.random.default_rng(17)

    def expect(condition, text):
        if not condition:
            raise AssertionError(text)

    def refusal(call):
        try:
            call()
        except InferenceServerException as error:
            return f"{error.status()}: {error.message()}"
        raise AssertionError("accepted what is wrong")

    def make_input(x, datatype="FP32", name="x"):
        tensor = triton.InferInput(name, list(x.shape), datatype)
        tensor.set_data_from_numpy(x)
        return tensor

    def normalized(x):
        """InstanceNorm without parameters, in float64."""
        rows = x.astype(np.float64).reshape(x.shape[0], x.shape[1], -1)
        mean = rows.mean(axis=2, keepdims=True)
        variance = rows.var(axis=2, keepdims=True)
        return ((rows - mean) / np.sqrt(variance + 1e-5)).reshape(x.shape)

    def all_types(client):
        for datatype, dtype, tolerance in (("FP32", np.float32, 1e-5), ("FP64", np.float64, 1e-12),
                                           ("FP16", np.float16, 4e-3), ("BF16", ml_dtypes.bfloat16, 3e-2)):
            x = random.normal(size=SHAPE).astype(dtype)
            result = client.infer("instance_norm_64", [make_input(x, datatype)], request_id="an id",
                                  outputs=[triton.InferRequestedOutput("y")],
                                  model_version="1", priority=1, timeout=10_000_000,
                                  client_timeout=LIMIT_S)
            response = result.get_response()
            expect(response.id == "an id", response.id)
            expect(response.model_version == "1", response.model_version)
            expect(result.get_output("y").datatype == datatype, str(result.get_output("y")))
            y = result.as_numpy("y").astype(np.float64)
            # The demo model has parameters: what is affine in each channel is taken out.
            wanted = normalized(x)
            for channel in range(SHAPE[1]):
                scale, shift = np.polyfit(wanted[:, channel].ravel(), y[:, channel].ravel(), 1)
                error = np.abs(wanted[:, channel] * scale + shift - y[:, channel]).max()
                expect(error <= tolerance * max(1, abs(scale)), f"{datatype}: error {error}")

    def typed_contents(client):
        """What tritonclient does not send itself goes through its stub."""
        x = random.normal(size=(3, 1024)).astype(np.float32)
        raw = client.infer("layer_norm_1024", [make_input(x)]).as_numpy("y")
        request = service_pb2.ModelInferRequest(model_name="layer_norm_1024")
        tensor = request.inputs.add(name="x", datatype="FP32", shape=x.shape)
        tensor.contents.fp32_contents.extend(x.ravel())
        response = client._client_stub.ModelInfer(request)
        typed = np.frombuffer(response.raw_output_contents[0], np.float32)
        expect((typed == raw.ravel()).all(), "typed contents give other bits")
        tensor.datatype = "FP64"
        try:
            client._client_stub.ModelInfer(request)
            raise AssertionError("accepted contents of the wrong field")
        except Exception as error:  # gRPC's own class.
            expect("fp64_contents" in str(error), str(error))

    def describing(client):
        expect(client.is_server_live() and client.is_server_ready(), "not ready")
        expect(client.is_model_ready("instance_norm_64"), "model not ready")
        expect(not client.is_model_ready("nothing"), "an unknown model is ready")
        metadata = client.get_server_metadata()
        expect(metadata.name == "normd" and "statistics" in metadata.extensions, str(metadata))
        model = client.get_model_metadata("fused_linear_512")
        expect([i.name for i in model.inputs] == ["x", "y"], str(model))
        config = client.get_model_config("fused_linear_512", as_json=True)
        expect(config["config"]["backend"] == "normd", str(config))
        index = client.get_model_repository_index()
        expect({"instance_norm_64"} <= {m.name for m in index.models}, str(index))
        expect("trace_level" in client.get_trace_settings().settings, "no trace_level")
        expect("log_info" in client.get_log_settings().settings, "no log_info")

    def loading(client):
        x = random.normal(size=(1, 1024)).astype(np.float32)
        client.unload_model("layer_norm_1024")
        expect(not client.is_model_ready("layer_norm_1024"), "ready after its unload")
        text = refusal(lambda: client.infer("layer_norm_1024", [make_input(x)]))
        expect("NOT_FOUND" in text, text)
        client.load_model("layer_norm_1024")
        client.infer("layer_norm_1024", [make_input(x)])
        text = refusal(lambda: client.load_model("layer_norm_1024", config="{}"))
        expect("UNIMPLEMENTED" in text, text)

    def statistics(client):
        x = random.normal(size=(1, 4096)).astype(np.float32)
        for _ in range(3):
            client.infer("rms_norm_4096", [make_input(x)])
        stats = client.get_inference_statistics("rms_norm_4096").model_stats[0]
        expect(stats.inference_count == 3 and stats.inference_stats.success.count == 3, str(stats))
        expect(stats.inference_stats.compute_infer.ns > 0, str(stats))
        expect(sum(b.compute_infer.count for b in stats.batch_stats) == stats.execution_count,
               str(stats))

    def errors(client):
        x = random.normal(size=SHAPE).astype(np.float32)
        tensor = make_input(x)
        for text, call in {
                "outputs[0].name: \"q\"": lambda: client.infer(
                    "instance_norm_64", [tensor], outputs=[triton.InferRequestedOutput("q")]),
                "classification": lambda: client.infer(
                    "instance_norm_64", [tensor],
                    outputs=[triton.InferRequestedOutput("y", class_count=2)]),
                "parameters[\"priority\"]: 9": lambda: client.infer(
                    "instance_norm_64", [tensor], priority=9),
                "inputs[0].name: \"z\"": lambda: client.infer(
                    "instance_norm_64", [make_input(x, name="z")]),
                "INVALID_ARGUMENT": lambda: client.infer("../x", [tensor]),
                "model_version": lambda: client.infer("instance_norm_64", [tensor],
                                                      model_version="new"),
                "no shared memory object": lambda: client.register_system_shared_memory(
                    "r", "/normd_nothing", 64),
                "--shared_memory_cuda": lambda: client.register_cuda_shared_memory(
                    "r", base64.b64encode(bytes(64)), 0, 64),
        }.items():
            got = refusal(call)
            expect(text in got, f"{text!r} is not in {got!r}")

    def shared_memory(client):
        """Input and output in one region, as the client's own module makes it."""
        x = random.normal(size=SHAPE).astype(np.float32)
        wanted = client.infer("instance_norm_64", [make_input(x)]).as_numpy("y")
        key = f"/normd_tritonclient_{os.getpid()}"
        region = triton_shm.create_shared_memory_region("both", key, 2 * x.nbytes)
        try:
            client.register_system_shared_memory("both", key, 2 * x.nbytes)
            status = client.get_system_shared_memory_status("both")
            expect(status.regions["both"].byte_size == 2 * x.nbytes, str(status))
            triton_shm.set_shared_memory_region(region, [x])
            tensor = triton.InferInput("x", list(x.shape), "FP32")
            tensor.set_shared_memory("both", x.nbytes)
            output = triton.InferRequestedOutput("y")
            output.set_shared_memory("both", x.nbytes, offset=x.nbytes)
            result = client.infer("instance_norm_64", [tensor], outputs=[output])
            where = result.get_output("y").parameters
            expect(where["shared_memory_offset"].int64_param == x.nbytes, str(where))
            y = triton_shm.get_contents_as_numpy(region, np.float32, list(x.shape), x.nbytes)
            expect((y == wanted).all(), "shared memory gives other bits")
            # One tensor there, the other in the message.
            result = client.infer("instance_norm_64", [tensor])
            expect((result.as_numpy("y") == wanted).all(), "the output comes back wrong")
            text = refusal(lambda: client.register_system_shared_memory("both", key, 1))
            expect("ALREADY_EXISTS" in text, text)
            output.set_shared_memory("both", x.nbytes, offset=x.nbytes + 4)
            text = refusal(lambda: client.infer("instance_norm_64", [tensor], outputs=[output]))
            expect("OUT_OF_RANGE" in text, text)
            client.unregister_system_shared_memory("both")
            text = refusal(lambda: client.infer("instance_norm_64", [tensor]))
            expect("NOT_FOUND" in text, text)
            expect(not client.get_system_shared_memory_status().regions, "a region is left")
        finally:
            triton_shm.destroy_shared_memory_region(region)

    def streaming(client):
        answers = queue.Queue()
        client.start_stream(callback=lambda result, error: answers.put((result, error)))
        tensors = []
        for i in range(100):
            x = random.normal(size=(1, 64, 1 + i % 9, 7)).astype(np.float32)
            tensors.append(x)
            client.async_stream_infer("nothing" if i % 10 == 9 else "instance_norm_64",
                                      [make_input(x)], request_id=str(i))
        for i, x in enumerate(tensors):
            result, error = answers.get(timeout=LIMIT_S)
            if i % 10 == 9:
                expect(error is not None and "nothing" in str(error), str(error))
                continue
            expect(error is None, str(error))
            expect(result.get_response().id == str(i), "out of order")
            alone = client.infer("instance_norm_64", [make_input(x)]).as_numpy("y")
            expect((result.as_numpy("y") == alone).all(), "a stream gives other bits")
        client.stop_stream()

    def asynchronous(client):
        answers = queue.Queue()
        x = random.normal(size=SHAPE).astype(np.float32)
        for _ in range(20):
            client.async_infer("group_norm_64_8", [make_input(x)],
                               callback=lambda result, error: answers.put((result, error)))
        first = None
        for _ in range(20):
            result, error = answers.get(timeout=LIMIT_S)
            expect(error is None, str(error))
            first = result.as_numpy("y") if first is None else first
            expect((result.as_numpy("y") == first).all(), "other bits")

    def compressed(client):
        x = random.normal(size=SHAPE).astype(np.float32)
        x[:, ::2] = 0  # It gets smaller.
        plain = client.infer("instance_norm_64", [make_input(x)]).as_numpy("y")
        for algorithm in ("gzip", "deflate"):
            y = client.infer("instance_norm_64", [make_input(x)], compression_algorithm=algorithm)
            expect((y.as_numpy("y") == plain).all(), algorithm)
            done = queue.Queue()
            client.start_stream(callback=lambda result, error: done.put((result, error)),
                                compression_algorithm=algorithm)
            client.async_stream_infer("instance_norm_64", [make_input(x)])
            result, error = done.get(timeout=LIMIT_S)
            expect(error is None, f"{algorithm}: {error}")
            expect((result.as_numpy("y") == plain).all(), f"{algorithm}, streamed")
            client.stop_stream()

    # The clients of one process share a connection.
    def idle_streams(address):
        x = random.normal(size=SHAPE).astype(np.float32)
        clients = [triton.InferenceServerClient(address) for _ in range(100)]
        for client in clients:
            client.start_stream(callback=lambda result, error: None)
        for client in clients[:8]:
            expect(client.is_server_live(client_timeout=LIMIT_S), "not live")
            client.infer("instance_norm_64", [make_input(x)], client_timeout=LIMIT_S)
        for client in clients:
            client.close()

    async def with_asyncio(address):
        async with triton_aio.InferenceServerClient(address) as client:
            expect(await client.is_server_ready(), "not ready")
            x = random.normal(size=SHAPE).astype(np.float32)
            results = await asyncio.gather(
                *[client.infer("instance_norm_64", [make_input(x)]) for _ in range(20)])
            bits = {result.as_numpy("y").tobytes() for result in results}
            expect(len(bits) == 1, "other bits")

            async def requests():
                for i in range(10):
                    yield {"model_name": "instance_norm_64", "inputs": [make_input(x)],
                           "request_id": str(i)}

            ids = []
            async for result, error in client.stream_infer(requests()):
                expect(error is None, str(error))
                ids.append(result.get_response().id)
                bits.add(result.as_numpy("y").tobytes())
            expect(ids == [str(i) for i in range(10)], str(ids))
            expect(len(bits) == 1, "other bits")

    server = Server(options.normd, options.models, "--shared_memory=named")
    try:
        for path, status in (("/v2/health/live", 200), ("/v2/health/ready", 200),
                             ("/v2/models/instance_norm_64/ready", 200),
                             ("/v2/models/nothing/ready", 400), ("/metrics", 200),
                             ("/v2/nothing", 404)):
            expect(server.get(path) == status, f"{path}: {server.get(path)}, wanted {status}")
        with triton.InferenceServerClient(server.address) as client:
            for test in (all_types, typed_contents, describing, loading, statistics, errors, shared_memory,
                         streaming, asynchronous, compressed):
                test(client)
                print(f"passed: {test.__name__}")
        idle_streams(server.address)
        print("passed: idle_streams")
        asyncio.run(with_asyncio(server.address))
        print("passed: with_asyncio")
    finally:
        code = server.stop()
    expect(code == 0, f"normd: exit code {code}")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--normd", required=True)
    parser.add_argument("--models", required=True, help="a model repository")
    parser.add_argument("--venv", help="where the virtual environment is made; without it, the "
                        "packages are there")
    options = parser.parse_args()
    if options.venv is None:
        return tests(options)
    python = environment(pathlib.Path(options.venv), PACKAGES)
    if python is None:
        return SKIPPED
    return subprocess.run([python, __file__, f"--normd={options.normd}",
                           f"--models={options.models}"], check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
