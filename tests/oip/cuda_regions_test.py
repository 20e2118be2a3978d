#!/usr/bin/env python3
"""Memory of a CUDA device, and of the host, that clients share with a normd on a GPU, by Triton's
client and by PyTorch.

Needs a GPU and its driver, tritonclient[grpc], cuda-python, NumPy; PyTorch for some tests. Skips
without them. The program is BIN/normd, the models are MODELS.

    cuda_regions_test.py --bin=build/release/bin --models=deploy/models [--device=1]
        [--under='compute-sanitizer --tool memcheck'] [unittest's]
"""

import argparse
import base64
import os
import random
import socket
import subprocess
import sys
import time
import unittest
import urllib.request

try:
    import numpy as np
    import tritonclient.grpc as triton
    import tritonclient.utils.cuda_shared_memory as cuda_memory
    import tritonclient.utils.shared_memory as host_memory
    from cuda.bindings import runtime
    from tritonclient.grpc import service_pb2
    MISSING = None if runtime.cudaGetDeviceCount()[0] == 0 else "no CUDA device"
except Exception as error:  # pylint: disable=broad-except
    MISSING = str(error)

OPTIONS = argparse.Namespace(bin=".", models="deploy/models", device=0, churn_seconds=5.0, under="")
MODEL = "instance_norm_64"


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Normd:
    """A server of its own, on loopback."""

    def __init__(self, *flags):
        self.port, self.metrics_port = free_port(), free_port()
        self.address = f"127.0.0.1:{self.port}"
        self.process = subprocess.Popen(OPTIONS.under.split() + [
            os.path.join(OPTIONS.bin, "normd"), f"--listen={self.address}",
            f"--metrics_listen=127.0.0.1:{self.metrics_port}", "--http_listen=",
            "--shared_memory_cuda",
            "--shared_memory=named",
            f"--model_repository={OPTIONS.models}", "--max_identity_shared_bytes=70000000000",
            "--max_shared_bytes=70000000000", "--max_shared_regions=4096",
            "--max_identity_shared_regions=4096", *flags])
        self.client = triton.InferenceServerClient(self.address)
        for _ in range(600):
            try:
                if self.client.is_server_ready():
                    return
            except triton.InferenceServerException:
                time.sleep(0.1)
        raise RuntimeError("normd is not ready")

    def metric(self, series):
        with urllib.request.urlopen(f"http://127.0.0.1:{self.metrics_port}/metrics") as page:
            for line in page.read().decode().splitlines():
                if line.startswith(series + " "):
                    return float(line.split()[-1])
        return 0.0

    def compute_stage(self):
        """Seconds of all requests of the model so far."""
        return self.metric(f'normd_stage_duration_seconds_sum{{model="{MODEL}",stage="compute"}}')

    def free_device_bytes(self):
        """By the driver, whatever process asks."""
        runtime.cudaSetDevice(OPTIONS.device)
        return runtime.cudaMemGetInfo()[1]

    def stop(self):
        self.client.close()
        self.process.terminate()
        self.process.wait(60)


def x_of(shape, seed=1):
    return np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)


def by_message(client, x):
    tensor = triton.InferInput("x", x.shape, "FP32")
    tensor.set_data_from_numpy(x)
    return client.infer(MODEL, [tensor]).as_numpy("y")


def in_region(client, region, shape, x_offset, y_offset, **more):
    """Normalizes what lies at x_offset to y_offset."""
    size = int(np.prod(shape)) * 4
    tensor = triton.InferInput("x", shape, "FP32")
    tensor.set_shared_memory(region, size, offset=x_offset)
    wanted = triton.InferRequestedOutput("y")
    wanted.set_shared_memory(region, size, offset=y_offset)
    return client.infer(MODEL, [tensor], outputs=[wanted], **more)


def raw_request(shape, size):
    """What in_region sends, from offset 0 to `size`."""
    request = service_pb2.ModelInferRequest(model_name=MODEL)
    x = request.inputs.add(name="x", datatype="FP32", shape=shape)
    y = request.outputs.add(name="y")
    for tensor, offset in [(x, 0), (y, size)]:
        tensor.parameters["shared_memory_region"].string_param = "r"
        tensor.parameters["shared_memory_byte_size"].int64_param = size
        if offset:
            tensor.parameters["shared_memory_offset"].int64_param = offset
    return request


def raw_register(client, name, handle, device, size):
    """Triton's client decodes base64; what is no such text, it would refuse itself."""
    client.register_cuda_shared_memory(name, base64.b64encode(handle), device, size)


# A client of its own: takes memory, tells its handle, and waits until it is killed or its input ends.
CHILD = """
import sys, tritonclient.utils.cuda_shared_memory as m, numpy as np
region = m.create_shared_memory_region("c", int(sys.argv[1]), int(sys.argv[2]))
m.set_shared_memory_region(region, [np.arange(int(sys.argv[1]) // 4, dtype=np.float32) % 1013])
print(m.get_raw_handle(region).decode(), flush=True)
sys.stdin.readline()
"""


class Child:
    def __init__(self, size):
        self.process = subprocess.Popen([sys.executable, "-c", CHILD, str(size), str(OPTIONS.device)],
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.handle = self.process.stdout.readline().strip().encode()

    def kill(self):
        self.process.kill()
        self.process.wait()


@unittest.skipIf(MISSING, MISSING)
class CudaRegionsTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Normd()
        cls.client = cls.server.client

    @classmethod
    def tearDownClass(cls):
        cls.server.stop()

    def tearDown(self):
        self.client.unregister_cuda_shared_memory()
        self.assertEqual(self.server.metric('normd_shared_regions{kind="device"}'), 0)

    def region(self, name, size):
        region = cuda_memory.create_shared_memory_region(name, size, OPTIONS.device)
        self.addCleanup(cuda_memory.destroy_shared_memory_region, region)
        return region

    def register(self, region, name, size):
        self.client.register_cuda_shared_memory(name, cuda_memory.get_raw_handle(region),
                                                OPTIONS.device, size)

    def expect_refused(self, pattern, call, *arguments):
        with self.assertRaises(triton.InferenceServerException) as caught:
            call(*arguments)
        self.assertRegex(str(caught.exception), pattern)

    def test_bits_are_those_of_messages(self):
        for shape in [[1, 64, 3], [2, 64, 33], [1, 64, 16, 16], [1, 64, 256, 256], [3, 64, 161, 101]]:
            with self.subTest(shape=shape):
                x = x_of(shape)
                region = self.region("r", 2 * x.nbytes)
                cuda_memory.set_shared_memory_region(region, [x, np.full_like(x, np.nan)])
                self.register(region, "r", 2 * x.nbytes)
                in_region(self.client, "r", shape, 0, x.nbytes)
                both = cuda_memory.get_contents_as_numpy(region, np.float32, [2] + shape)
                np.testing.assert_array_equal(both[0], x)
                np.testing.assert_array_equal(both[1], by_message(self.client, x))
                in_region(self.client, "r", shape, 0, 0)
                both = cuda_memory.get_contents_as_numpy(region, np.float32, [2] + shape)
                np.testing.assert_array_equal(both[0], both[1])
                self.client.unregister_cuda_shared_memory("r")

    def test_mixed_with_messages(self):
        x = x_of([2, 64, 65, 63])
        region = self.region("r", 2 * x.nbytes)
        cuda_memory.set_shared_memory_region(region, [x])
        self.register(region, "r", 2 * x.nbytes)
        tensor = triton.InferInput("x", x.shape, "FP32")
        tensor.set_shared_memory("r", x.nbytes)
        y = by_message(self.client, x)
        np.testing.assert_array_equal(self.client.infer(MODEL, [tensor]).as_numpy("y"), y)
        tensor.set_data_from_numpy(x)
        wanted = triton.InferRequestedOutput("y")
        wanted.set_shared_memory("r", x.nbytes, offset=x.nbytes)
        self.client.infer(MODEL, [tensor], outputs=[wanted])
        both = cuda_memory.get_contents_as_numpy(region, np.float32, (2,) + x.shape)
        np.testing.assert_array_equal(both[1], y)

    def test_torch_tensors_with_their_offset(self):
        try:
            import torch  # pylint: disable=import-outside-toplevel
        except ImportError:
            self.skipTest("no PyTorch")
        torch.cuda.set_device(OPTIONS.device)
        keep = torch.empty(1000, device="cuda")  # So that the next does not begin its block.
        x = torch.from_numpy(x_of([2, 64, 31, 31])).cuda()
        y = torch.empty_like(x)
        torch.cuda.synchronize()
        for name, tensor in [("x", x), ("y", y)]:
            shared = tensor.untyped_storage()._share_cuda_()
            handle, size, offset = shared[1], shared[2], shared[3]
            raw_register(self.client, name, handle[-64:], OPTIONS.device, size + offset)
            tensor.offset = offset
        given = triton.InferInput("x", list(x.shape), "FP32")
        given.set_shared_memory("x", x.nbytes, offset=x.offset)
        wanted = triton.InferRequestedOutput("y")
        wanted.set_shared_memory("y", y.nbytes, offset=y.offset)
        self.client.infer(MODEL, [given], outputs=[wanted])
        np.testing.assert_array_equal(y.cpu().numpy(), by_message(self.client, x.cpu().numpy()))
        del keep

    def test_garbage_handles(self):
        generator = random.Random(7)
        good = self.region("g", 1 << 21)
        good = bytearray(base64.b64decode(cuda_memory.get_raw_handle(good)))
        for i in range(300):
            if i % 2 == 0:
                handle = generator.randbytes(64)
            else:  # One byte of a good one is another: most of them mean nothing.
                handle = bytearray(good)
                handle[generator.randrange(64)] ^= 1 << generator.randrange(8)
            try:
                raw_register(self.client, "g", bytes(handle), OPTIONS.device, 4096)
                self.client.unregister_cuda_shared_memory("g")  # A byte that nobody looks at.
            except triton.InferenceServerException as error:
                self.assertRegex(str(error), "raw_handle|device_id|byte_size")
        self.expect_refused("63 bytes, wanted 64", raw_register, self.client, "g", b"h" * 63,
                            OPTIONS.device, 4096)
        x = x_of([1, 64, 9])
        by_message(self.client, x)  # The device is as before.

    def test_device_and_sizes(self):
        size = 4 << 20
        region = self.region("r", size)
        handle = cuda_memory.get_raw_handle(region)
        for device in [-1, 64]:
            self.expect_refused(f"device_id: {device}, wanted", self.client.register_cuda_shared_memory,
                                "r", handle, device, size)
        self.expect_refused("byte_size: 0", self.client.register_cuda_shared_memory, "r", handle,
                            OPTIONS.device, 0)
        self.expect_refused("wanted at most the [0-9]+ bytes that the handle's allocation has",
                            self.client.register_cuda_shared_memory, "r", handle, OPTIONS.device,
                            size + (2 << 20) + 1)
        self.register(region, "r", size)
        self.expect_refused("is registered", self.register, region, "r", size)
        self.expect_refused("wanted a part of its", in_region, self.client, "r", [1, 64, 16384],
                            4096, 0)
        self.expect_refused("overlaps input", in_region, self.client, "r", [1, 64, 64], 0, 4096)

    def test_a_process_that_has_died(self):
        size = 8 << 20
        dead = Child(size)
        dead.kill()
        self.expect_refused("raw_handle", self.client.register_cuda_shared_memory, "d", dead.handle,
                            OPTIONS.device, size)

    def test_a_process_that_dies_while_its_memory_is_registered(self):
        shape, size = [1, 64, 16384], 8 << 20
        child = Child(size)
        self.client.register_cuda_shared_memory("c", child.handle, OPTIONS.device, size)
        in_region(self.client, "c", shape, 0, size // 2)
        child.kill()
        # Its memory is the server's until it is unregistered: nothing happens but numbers.
        for _ in range(100):
            in_region(self.client, "c", shape, 0, size // 2)
        tensor = triton.InferInput("x", shape, "FP32")
        tensor.set_shared_memory("c", size // 2)
        x = (np.arange(size // 8, dtype=np.float32) % 1013).reshape(shape)
        np.testing.assert_array_equal(self.client.infer(MODEL, [tensor]).as_numpy("y"),
                                      by_message(self.client, x))

    def test_regions_that_come_and_go_leave_nothing(self):
        shape, size = [1, 64, 1024], 2 * 64 * 1024 * 4
        region = self.region("r", size)
        x = x_of(shape)
        cuda_memory.set_shared_memory_region(region, [x])
        y = by_message(self.client, x)

        def rounds(seconds):
            end, count = time.monotonic() + seconds, 0
            while time.monotonic() < end:
                self.register(region, "r", size)
                in_region(self.client, "r", shape, 0, size // 2)
                self.client.unregister_cuda_shared_memory("r")
                count += 1
            return count

        rounds(1)
        before = self.server.free_device_bytes(), self.open_files(), self.mappings()
        count = rounds(OPTIONS.churn_seconds)
        after = self.server.free_device_bytes(), self.open_files(), self.mappings()
        both = cuda_memory.get_contents_as_numpy(region, np.float32, [2] + shape)
        np.testing.assert_array_equal(both[1], y)
        print(f"\n{count} regions in {OPTIONS.churn_seconds:g} s: free bytes, files, mappings "
              f"{before} before, {after} after")
        self.assertGreaterEqual(after[0], before[0] - (16 << 20))
        self.assertLessEqual(after[1], before[1] + 16)
        self.assertLessEqual(after[2], before[2] + 64)

    def open_files(self):
        return len(os.listdir(f"/proc/{self.server.process.pid}/fd"))

    def mappings(self):
        with open(f"/proc/{self.server.process.pid}/maps", encoding="utf-8") as maps:
            return sum(1 for _ in maps)

    def test_seven_and_a_half_gigabytes(self):
        shape = [112, 64, 512, 512]
        size = int(np.prod(shape)) * 4
        if self.server.free_device_bytes() < 2 * size + (1 << 30):
            self.skipTest("not enough device memory")
        region = self.region("r", 2 * size)
        one = x_of([1, 64, 512, 512])
        base = region._base_addr  # pylint: disable=protected-access
        for i in range(112):
            runtime.cudaMemcpy(base + i * one.nbytes, one.ctypes.data, one.nbytes,
                               runtime.cudaMemcpyKind.cudaMemcpyHostToDevice)
        runtime.cudaMemset(base + size, 255, size)
        runtime.cudaDeviceSynchronize()
        self.register(region, "r", 2 * size)
        request = raw_request(shape, size)
        infer = self.client._client_stub.ModelInfer  # pylint: disable=protected-access
        infer(request)
        stages = [self.server.compute_stage()]
        calls = []
        for _ in range(20):
            begin = time.monotonic()
            infer(request)
            calls.append(time.monotonic() - begin)
        stages.append(self.server.compute_stage())
        y = np.empty_like(one)
        expected = by_message(self.client, one)
        for i in [0, 1, 55, 111]:
            runtime.cudaMemcpy(y.ctypes.data, base + size + i * one.nbytes, one.nbytes,
                               runtime.cudaMemcpyKind.cudaMemcpyDeviceToHost)
            np.testing.assert_array_equal(y, expected)
        calls.sort()
        print(f"\n7.5 GB: call {1e3 * calls[0]:.3f} ms at best, {1e3 * calls[10]:.3f} median; the "
              f"server's compute stage {1e3 * (stages[1] - stages[0]) / len(calls):.3f} ms on average")


@unittest.skipIf(MISSING, MISSING)
class LockedRegionsTest(unittest.TestCase):
    """Regions of the host, whose pages are locked for the device."""

    @classmethod
    def setUpClass(cls):
        cls.server = Normd()
        cls.client = cls.server.client

    @classmethod
    def tearDownClass(cls):
        cls.server.stop()

    def tearDown(self):
        self.client.unregister_system_shared_memory()
        self.await_locked(0)

    def await_locked(self, wanted):
        end = time.monotonic() + 30
        while self.server.metric("normd_shared_locked_bytes") != wanted:
            self.assertLess(time.monotonic(), end)
            time.sleep(0.01)

    def region(self, size):
        key = f"/normd_locked_{os.getpid()}_{random.getrandbits(32)}"
        region = host_memory.create_shared_memory_region("r", key, size)
        self.addCleanup(host_memory.destroy_shared_memory_region, region)
        self.client.register_system_shared_memory("r", key, size)
        return key, region

    def test_bits_are_those_of_messages_before_and_after_they_are_locked(self):
        for shape in [[1, 64, 16], [2, 64, 32, 16], [1, 64, 256, 256], [3, 64, 161, 101],
                      [8, 64, 256, 256]]:
            with self.subTest(shape=shape):
                x = x_of(shape)
                y = by_message(self.client, x)
                _, region = self.region(2 * x.nbytes)
                for locked in [False, True]:
                    if locked:
                        self.await_locked(-(-2 * x.nbytes // 4096) * 4096)
                    host_memory.set_shared_memory_region(region, [x, np.full_like(x, np.nan)])
                    in_region(self.client, "r", shape, 0, x.nbytes)
                    both = host_memory.get_contents_as_numpy(region, np.float32, [2] + shape)
                    np.testing.assert_array_equal(both[0], x)
                    np.testing.assert_array_equal(both[1], y)
                    in_region(self.client, "r", shape, 0, 0)
                    both = host_memory.get_contents_as_numpy(region, np.float32, [2] + shape)
                    np.testing.assert_array_equal(both[0], y)
                self.client.unregister_system_shared_memory("r")
                self.await_locked(0)

    def test_a_file_that_is_made_shorter(self):
        shape, size = [1, 64, 16384], 8 << 20
        key, _ = self.region(size)
        self.await_locked(size)
        os.truncate("/dev/shm" + key, size // 2)
        with self.assertRaisesRegex(triton.InferenceServerException, "its memory was taken away"):
            in_region(self.client, "r", shape, 0, size // 2)
        by_message(self.client, x_of(shape))  # The device is as before.

    def test_rates(self):
        shape = [1, 64, 256, 256]
        x = x_of(shape)
        size = 2 * x.nbytes
        _, region = self.region(size)
        host_memory.set_shared_memory_region(region, [x])
        self.await_locked(size)
        stages = ["gather", "copy_in", "compute", "copy_out"]

        def seconds():
            series = 'normd_stage_duration_seconds_sum{{model="{}",stage="{}"}}'
            return [self.server.metric(series.format(MODEL, stage)) for stage in stages]

        in_region(self.client, "r", shape, 0, x.nbytes)
        before = seconds()
        for _ in range(100):
            in_region(self.client, "r", shape, 0, x.nbytes)
        took = [10 * (b - a) for a, b in zip(before, seconds())]
        print("\n16 MiB in a locked region, ms of each stage: "
              + ", ".join(f"{stage} {ms:.3f}" for stage, ms in zip(stages, took)))
        self.assertLess(took[0], 0.1)  # Nothing is gathered.


def main():
    """Runs the tests of the program that calls it."""
    global OPTIONS  # pylint: disable=global-statement
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bin", required=True)
    parser.add_argument("--models", required=True)
    parser.add_argument("--device", type=int, default=0)
    parser.add_argument("--churn_seconds", type=float, default=5.0)
    parser.add_argument("--under", default="", help="a command before the server's")
    OPTIONS, rest = parser.parse_known_args()
    unittest.main("__main__", argv=[sys.argv[0], *rest])


if __name__ == "__main__":
    main()
