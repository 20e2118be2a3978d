#!/usr/bin/env python3
"""PyPI's tritonclient, unmodified, against a real normd, over gRPC and over HTTP.

Synchronous, asyncio and streaming calls; every type; binary, typed and JSON contents; load, unload,
statistics, metadata, health and errors. Results are held against NumPy in float64, and those of both
protocols against each other, bit by bit and word by word.
"""

import asyncio
import base64
import contextlib
import os
import queue
import sys
import traceback

import infer_cases
import ml_dtypes
import numpy as np
import tritonclient.grpc as triton
import tritonclient.grpc.aio as triton_aio
import tritonclient.http.aio as http_aio
import tritonclient.utils.shared_memory as triton_shm
from infer_cases import SHAPE
from protocols import STATUSES, Grpc, Http, refusal
from served import LIMIT_S, Server, command_line
from tritonclient.grpc import service_pb2


def tests(options):
    random = np.random.default_rng(17)

    def expect(condition, text):
        if not condition:
            raise AssertionError(text)

    def expect_refusal(protocol, code, text, call):
        """By the names of gRPC, which HTTP's statuses follow."""
        got, message = refusal(call)
        wanted = code if protocol.name == "gRPC" else str(STATUSES[code])
        expect(got == wanted and text in message, f"{got}: {message!r}, wanted {wanted}: {text!r}")

    def normalized(x):
        """InstanceNorm without parameters, in float64."""
        rows = x.astype(np.float64).reshape(x.shape[0], x.shape[1], -1)
        mean = rows.mean(axis=2, keepdims=True)
        variance = rows.var(axis=2, keepdims=True)
        return ((rows - mean) / np.sqrt(variance + 1e-5)).reshape(x.shape)

    # Each over both protocols.

    def all_types(protocol):
        for datatype, dtype, tolerance in (("FP32", np.float32, 1e-5), ("FP64", np.float64, 1e-12),
                                           ("FP16", np.float16, 4e-3), ("BF16", ml_dtypes.bfloat16, 3e-2)):
            x = random.normal(size=SHAPE).astype(dtype)
            result = protocol.infer("instance_norm_64", [protocol.input(x, datatype)],
                                    request_id="an id", outputs=[protocol.output("y")],
                                    model_version="1", priority=1, timeout=10_000_000)
            described = protocol.described(result)
            expect(described == {"model_name": "instance_norm_64", "model_version": 1, "id": "an id",
                                 "outputs": [{"name": "y", "datatype": datatype,
                                              "shape": list(SHAPE)}]}, str(described))
            y = result.as_numpy("y").astype(np.float64)
            # The demo model has parameters: what is affine in each channel is taken out.
            wanted = normalized(x)
            for channel in range(SHAPE[1]):
                scale, shift = np.polyfit(wanted[:, channel].ravel(), y[:, channel].ravel(), 1)
                error = np.abs(wanted[:, channel] * scale + shift - y[:, channel]).max()
                expect(error <= tolerance * max(1, abs(scale)), f"{datatype}: error {error}")

    def describing(protocol):
        client = protocol.client
        expect(client.is_server_live() and client.is_server_ready(), "not ready")
        expect(client.is_model_ready("instance_norm_64"), "model not ready")
        expect(client.is_model_ready("instance_norm_64", "1"), "version not ready")
        expect(not client.is_model_ready("nothing"), "an unknown model is ready")
        metadata = protocol.server()
        expect(metadata["name"] == "normd" and "statistics" in metadata["extensions"], str(metadata))
        model = protocol.model("fused_linear_512")
        expect([i["name"] for i in model["inputs"]] == ["x", "y"], str(model))
        expect(protocol.config("fused_linear_512")["backend"] == "normd", "config")
        index = protocol.index()
        expect({"instance_norm_64"} <= {m["name"] for m in index}, str(index))
        expect("trace_level" in protocol.trace(), "no trace_level")
        expect("log_info" in protocol.log(), "no log_info")
        expect_refusal(protocol, "NOT_FOUND", "nothing", lambda: protocol.model("nothing"))

    def loading(protocol):
        client = protocol.client
        x = random.normal(size=(1, 1024)).astype(np.float32)
        client.unload_model("layer_norm_1024")
        expect(not client.is_model_ready("layer_norm_1024"), "ready after its unload")
        expect_refusal(protocol, "NOT_FOUND", "layer_norm_1024",
                       lambda: protocol.infer("layer_norm_1024", [protocol.input(x)]))
        client.load_model("layer_norm_1024")
        protocol.infer("layer_norm_1024", [protocol.input(x)])
        expect_refusal(protocol, "UNIMPLEMENTED", "config",
                       lambda: client.load_model("layer_norm_1024", config="{}"))

    def statistics(protocol):
        x = random.normal(size=(1, 4096)).astype(np.float32)
        before = protocol.statistics("rms_norm_4096")[0].get("inference_count", 0)
        for _ in range(3):
            protocol.infer("rms_norm_4096", [protocol.input(x)])
        stats = protocol.statistics("rms_norm_4096")[0]
        expect(stats["inference_count"] == before + 3, str(stats))
        expect(stats["inference_stats"]["success"]["count"] == before + 3, str(stats))
        expect(stats["inference_stats"]["compute_infer"]["ns"] > 0, str(stats))
        expect(sum(b["compute_infer"]["count"] for b in stats["batch_stats"]) ==
               stats["execution_count"], str(stats))

    def errors(protocol):
        client = protocol.client
        expect_refusal(protocol, "NOT_FOUND", "no shared memory object",
                       lambda: client.register_system_shared_memory("r", "/normd_nothing", 64))
        expect_refusal(protocol, "UNIMPLEMENTED", "--shared_memory_cuda",
                       lambda: client.register_cuda_shared_memory(
                           "r", base64.b64encode(bytes(64)), 0, 64))
        expect_refusal(protocol, "NOT_FOUND", "nothing", lambda: client.load_model("nothing"))
        expect_refusal(protocol, "UNIMPLEMENTED", "log", lambda: client.update_log_settings(
            {"log_info": True}))
        expect_refusal(protocol, "UNIMPLEMENTED", "trace", lambda: client.update_trace_settings(
            settings={"trace_level": ["TIMESTAMPS"]}))

    def shared_memory(protocol):
        """Input and output in one region, as the client's own module makes it."""
        client = protocol.client
        x = random.normal(size=SHAPE).astype(np.float32)
        wanted = protocol.infer("instance_norm_64", [protocol.input(x)]).as_numpy("y")
        key = f"/normd_tritonclient_{os.getpid()}"
        region = triton_shm.create_shared_memory_region("both", key, 2 * x.nbytes)
        try:
            client.register_system_shared_memory("both", key, 2 * x.nbytes)
            status = protocol.regions()
            expect(status == [{"name": "both", "key": key, "byte_size": 2 * x.nbytes}], str(status))
            triton_shm.set_shared_memory_region(region, [x])
            tensor = protocol.shared_input(SHAPE, "both", x.nbytes)
            output = protocol.output("y", shared=("both", x.nbytes, x.nbytes))
            result = protocol.infer("instance_norm_64", [tensor], outputs=[output])
            where = protocol.described(result)["outputs"][0]["parameters"]
            expect(where == {"shared_memory_region": "both", "shared_memory_byte_size": x.nbytes,
                             "shared_memory_offset": x.nbytes}, str(where))
            y = triton_shm.get_contents_as_numpy(region, np.float32, list(x.shape), x.nbytes)
            expect((y == wanted).all(), "shared memory gives other bits")
            # One tensor there, the other in the message.
            result = protocol.infer("instance_norm_64", [tensor])
            expect((result.as_numpy("y") == wanted).all(), "the output comes back wrong")
            expect_refusal(protocol, "ALREADY_EXISTS", "both",
                           lambda: client.register_system_shared_memory("both", key, 1))
            output = protocol.output("y", shared=("both", x.nbytes, x.nbytes + 4))
            expect_refusal(protocol, "OUT_OF_RANGE", "both", lambda: protocol.infer(
                "instance_norm_64", [tensor], outputs=[output]))
            client.unregister_system_shared_memory("both")
            expect_refusal(protocol, "NOT_FOUND", "both",
                           lambda: protocol.infer("instance_norm_64", [tensor]))
            expect(not protocol.regions(), "a region is left")
        finally:
            triton_shm.destroy_shared_memory_region(region)

    def compressed(protocol):
        x = random.normal(size=SHAPE).astype(np.float32)
        x[:, ::2] = 0  # It gets smaller.
        plain = protocol.infer("instance_norm_64", [protocol.input(x)]).as_numpy("y")
        for algorithm in ("gzip", "deflate"):
            y = protocol.compressed("instance_norm_64", [protocol.input(x)], algorithm)
            expect((y.as_numpy("y") == plain).all(), algorithm)

    # One protocol against the other.

    def same_bits(grpc, http):
        for name, (in_json, _, _) in infer_cases.GOOD.items():
            # Whether inputs and outputs are binary.
            forms = [None, (True, False), (False, True), (False, False)] if in_json else [None]
            for form in forms:
                make = infer_cases.case(name, form)
                wanted, got = (protocol.infer(**make(protocol)) for protocol in (grpc, http))
                outputs = grpc.described(wanted)
                expect(http.described(got) == outputs,
                       f"{name}, binary {form}: {http.described(got)}, over gRPC {outputs}")
                for output in outputs["outputs"]:
                    theirs, ours = (r.as_numpy(output["name"]) for r in (wanted, got))
                    expect(theirs.tobytes() == ours.tobytes(),
                           f"{name}, binary {form}: other bits in {output['name']}")

    def same_words(grpc, http):
        others = []
        for name, make in infer_cases.BAD.items():
            code, message = refusal(lambda: grpc.infer(**make(grpc)))
            status, told = refusal(lambda: http.infer(**make(http)))
            # The reader of JSON knows which input it is at.
            told = told if told == message else told.removeprefix("inputs[0].")
            if code == "OK" or (status, told) != (str(STATUSES.get(code)), message):
                others.append(f"{name}: {status} {told!r}, over gRPC {code} {message!r}")
        expect(not others, "\n".join(others))

    def same_descriptions(grpc, http):
        for ask in (lambda p: p.server(), lambda p: p.index(), lambda p: p.trace(), lambda p: p.log(),
                    lambda p: p.regions(), lambda p: p.statistics("rms_norm_4096"),
                    lambda p: [p.model(model["name"]) for model in p.index()],
                    lambda p: [p.config(model["name"]) for model in p.index()]):
            expect(ask(grpc) == ask(http), f"{ask(http)}, over gRPC {ask(grpc)}")

    # What one protocol has alone.

    def typed_contents(grpc):
        """What tritonclient does not send itself goes through its stub."""
        x = random.normal(size=(3, 1024)).astype(np.float32)
        raw = grpc.infer("layer_norm_1024", [grpc.input(x)]).as_numpy("y")
        request = service_pb2.ModelInferRequest(model_name="layer_norm_1024")
        tensor = request.inputs.add(name="x", datatype="FP32", shape=x.shape)
        tensor.contents.fp32_contents.extend(x.ravel())
        response = grpc.client._client_stub.ModelInfer(request)
        typed = np.frombuffer(response.raw_output_contents[0], np.float32)
        expect((typed == raw.ravel()).all(), "typed contents give other bits")
        tensor.datatype = "FP64"
        try:
            grpc.client._client_stub.ModelInfer(request)
            raise AssertionError("accepted contents of the wrong field")
        except Exception as error:  # gRPC's own class.
            expect("fp64_contents" in str(error), str(error))

    def streaming(grpc):
        answers = queue.Queue()
        grpc.client.start_stream(callback=lambda result, error: answers.put((result, error)))
        tensors = []
        for i in range(100):
            x = random.normal(size=(1, 64, 1 + i % 9, 7)).astype(np.float32)
            tensors.append(x)
            grpc.client.async_stream_infer("nothing" if i % 10 == 9 else "instance_norm_64",
                                           [grpc.input(x)], request_id=str(i))
        for i, x in enumerate(tensors):
            result, error = answers.get(timeout=LIMIT_S)
            if i % 10 == 9:
                expect(error is not None and "nothing" in str(error), str(error))
                continue
            expect(error is None, str(error))
            expect(result.get_response().id == str(i), "out of order")
            alone = grpc.infer("instance_norm_64", [grpc.input(x)]).as_numpy("y")
            expect((result.as_numpy("y") == alone).all(), "a stream gives other bits")
        grpc.client.stop_stream()

    def compressed_streams(grpc):
        x = random.normal(size=SHAPE).astype(np.float32)
        plain = grpc.infer("instance_norm_64", [grpc.input(x)]).as_numpy("y")
        for algorithm in ("gzip", "deflate"):
            done = queue.Queue()
            grpc.client.start_stream(callback=lambda result, error: done.put((result, error)),
                                     compression_algorithm=algorithm)
            grpc.client.async_stream_infer("instance_norm_64", [grpc.input(x)])
            result, error = done.get(timeout=LIMIT_S)
            expect(error is None, f"{algorithm}: {error}")
            expect((result.as_numpy("y") == plain).all(), f"{algorithm}, streamed")
            grpc.client.stop_stream()

    def asynchronous(grpc):
        answers = queue.Queue()
        x = random.normal(size=SHAPE).astype(np.float32)
        for _ in range(20):
            grpc.client.async_infer("group_norm_64_8", [grpc.input(x)],
                                    callback=lambda result, error: answers.put((result, error)))
        first = None
        for _ in range(20):
            result, error = answers.get(timeout=LIMIT_S)
            expect(error is None, str(error))
            first = result.as_numpy("y") if first is None else first
            expect((result.as_numpy("y") == first).all(), "other bits")

    # The clients of one process share a connection.
    def idle_streams(grpc):
        x = random.normal(size=SHAPE).astype(np.float32)
        clients = [triton.InferenceServerClient(server.address) for _ in range(100)]
        for client in clients:
            client.start_stream(callback=lambda result, error: None)
        for client in clients[:8]:
            expect(client.is_server_live(client_timeout=LIMIT_S), "not live")
            client.infer("instance_norm_64", [grpc.input(x)], client_timeout=LIMIT_S)
        for client in clients:
            client.close()

    def at_once(http):
        """More calls than the client has connections."""
        x = random.normal(size=SHAPE).astype(np.float32)
        calls = [http.client.async_infer("group_norm_64_8", [http.input(x)]) for _ in range(40)]
        bits = {call.get_result(timeout=LIMIT_S).as_numpy("y").tobytes() for call in calls}
        expect(len(bits) == 1, "other bits")

    def numbers_that_json_has_not(http):
        """NaN and infinities go in and out as binary tensors; JSON has no word for them."""
        x = np.full(SHAPE, np.nan, np.float32)
        result = http.infer("instance_norm_64", [http.input(x)])
        expect(np.isnan(result.as_numpy("y")).all(), "NaN in binary")
        for make in (lambda: http.infer("instance_norm_64", [http.input(x, binary_data=False)]),
                     lambda: http.infer("instance_norm_64", [http.input(x)],
                                        outputs=[http.output("y", binary_data=False)])):
            expect_refusal(http, "INVALID_ARGUMENT", "", make)

    # With asyncio.

    async def over_grpc(grpc):
        async with triton_aio.InferenceServerClient(server.address) as client:
            expect(await client.is_server_ready(), "not ready")
            x = random.normal(size=SHAPE).astype(np.float32)
            results = await asyncio.gather(
                *[client.infer("instance_norm_64", [grpc.input(x)]) for _ in range(20)])
            bits = {result.as_numpy("y").tobytes() for result in results}
            expect(len(bits) == 1, "other bits")

            async def requests():
                for i in range(10):
                    yield {"model_name": "instance_norm_64", "inputs": [grpc.input(x)],
                           "request_id": str(i)}

            ids = []
            async for result, error in client.stream_infer(requests()):
                expect(error is None, str(error))
                ids.append(result.get_response().id)
                bits.add(result.as_numpy("y").tobytes())
            expect(ids == [str(i) for i in range(10)], str(ids))
            expect(len(bits) == 1, "other bits")

    async def over_http(http):
        async with http_aio.InferenceServerClient(server.http) as client:
            expect(await client.is_server_ready(), "not ready")
            x = random.normal(size=SHAPE).astype(np.float32)
            results = await asyncio.gather(
                *[client.infer("instance_norm_64", [http.input(x)]) for _ in range(20)])
            bits = {result.as_numpy("y").tobytes() for result in results}
            expect(len(bits) == 1, "other bits")
            expect((await client.get_server_metadata())["name"] == "normd", "metadata")

    with (Server(options, "--shared_memory=named") as server, contextlib.closing(Grpc(server)) as grpc,
          contextlib.closing(Http(server, concurrency=8)) as http):
        for path, status in (("/v2/health/live", 200), ("/v2/health/ready", 200),
                             ("/v2/models/instance_norm_64/ready", 200),
                             ("/v2/models/nothing/ready", 400), ("/metrics", 200),
                             ("/v2/nothing", 404)):
            expect(server.get(path) == status, f"{path}: {server.get(path)}, wanted {status}")
        runs = [(test, protocol) for test in (all_types, describing, loading, statistics, errors,
                                              shared_memory, compressed)
                for protocol in (grpc, http)]
        runs += [(test, grpc, http) for test in (same_bits, same_words, same_descriptions)]
        runs += [(test, grpc) for test in (typed_contents, streaming, compressed_streams, asynchronous,
                                           idle_streams)]
        runs += [(test, http) for test in (at_once, numbers_that_json_has_not)]
        runs += [(lambda client: asyncio.run(over_grpc(client)), grpc),
                 (lambda client: asyncio.run(over_http(client)), http)]
        failed = 0
        for test, *protocols in runs:
            name = f"{test.__name__} over {' and '.join(p.name for p in protocols)}"
            try:
                test(*protocols)
                print(f"passed: {name}", flush=True)
            except Exception:  # pylint: disable=broad-except
                failed += 1
                print(f"FAILED: {name}\n{traceback.format_exc()}", flush=True)
    return min(failed, 1)


if __name__ == "__main__":
    sys.exit(tests(command_line(__doc__).parse_args()))
