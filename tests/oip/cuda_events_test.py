#!/usr/bin/env python3
"""Requests that come before their inputs are written, with an event of CUDA IPC behind which they are.

Needs what cuda_regions_test.py needs, and takes its flags.
"""

import base64
import os
import subprocess
import sys
import time
import unittest
from concurrent import futures

import cuda_regions_test as shared

try:
    import numpy as np
    import tritonclient.grpc as triton
    import tritonclient.utils.cuda_shared_memory as cuda_memory
    from cuda.bindings import runtime
except ImportError:
    pass  # shared.MISSING tells.


class Work:
    """A stream of this process, what it is given, and an event behind it that others may open."""

    SCRATCH = 1 << 32

    def __init__(self):
        runtime.cudaSetDevice(shared.OPTIONS.device)
        self.scratch = runtime.cudaMalloc(self.SCRATCH)[1]
        self.stream = runtime.cudaStreamCreateWithFlags(runtime.cudaStreamNonBlocking)[1]
        self.new_event()

    def new_event(self):
        self.event = runtime.cudaEventCreateWithFlags(
            runtime.cudaEventInterprocess | runtime.cudaEventDisableTiming)[1]
        self.handle = base64.b64encode(
            bytes(runtime.cudaIpcGetEventHandle(self.event)[1].reserved)).decode()

    def give(self, rounds):
        """About a millisecond each."""
        for _ in range(rounds):
            runtime.cudaMemsetAsync(self.scratch, 1, self.SCRATCH, self.stream)

    def copy(self, to, source, size):
        kind = runtime.cudaMemcpyKind.cudaMemcpyDeviceToDevice
        runtime.cudaMemcpyAsync(to, source, size, kind, self.stream)

    def record(self):
        runtime.cudaEventRecord(self.event, self.stream)

    def is_done(self):
        return runtime.cudaEventQuery(self.event)[0] == 0

    def end(self):
        runtime.cudaStreamSynchronize(self.stream)
        runtime.cudaEventDestroy(self.event)
        runtime.cudaStreamDestroy(self.stream)
        runtime.cudaFree(self.scratch)


# A client whose event is behind more work than it lives for: tells the handles of its memory and of
# the event.
WORKING_CHILD = """
import sys
sys.path.insert(0, sys.argv[1])
import cuda_events_test as t
t.shared.OPTIONS.device = int(sys.argv[3])
region = t.cuda_memory.create_shared_memory_region("c", int(sys.argv[2]), int(sys.argv[3]))
work = t.Work()
work.give(3000)
work.record()
print(t.cuda_memory.get_raw_handle(region).decode(), work.handle, flush=True)
sys.stdin.readline()
"""


@unittest.skipIf(shared.MISSING, shared.MISSING)
class EventsTest(unittest.TestCase):
    SHAPE = [1, 64, 128, 128]
    SIZE = 4 << 20

    @classmethod
    def setUpClass(cls):
        cls.server = shared.Normd("--shared_memory_cuda_events")
        cls.client = cls.server.client

    @classmethod
    def tearDownClass(cls):
        cls.server.stop()

    def setUp(self):
        self.work = Work()
        self.region = cuda_memory.create_shared_memory_region("r", 3 * self.SIZE,
                                                              shared.OPTIONS.device)
        self.base = self.region._base_addr  # pylint: disable=protected-access
        self.client.register_cuda_shared_memory("r", cuda_memory.get_raw_handle(self.region),
                                                shared.OPTIONS.device, 3 * self.SIZE)
        self.x = shared.x_of(self.SHAPE)
        self.y = shared.by_message(self.client, self.x)

    def tearDown(self):
        self.client.unregister_cuda_shared_memory()
        self.work.end()
        cuda_memory.destroy_shared_memory_region(self.region)
        self.assertEqual(self.server.metric("normd_event_waiting_requests"), 0)

    def begin(self, rounds):
        """x is written behind so much work."""
        cuda_memory.set_shared_memory_region(
            self.region, [np.zeros_like(self.x), np.full_like(self.x, np.nan), self.x])
        runtime.cudaDeviceSynchronize()
        self.work.give(rounds)
        self.work.copy(self.base, self.base + 2 * self.SIZE, self.SIZE)
        self.work.record()

    def infer(self, **more):
        return shared.in_region(self.client, "r", self.SHAPE, 0, self.SIZE,
                                parameters={"event_handle": self.work.handle}, **more)

    def result(self):
        return cuda_memory.get_contents_as_numpy(self.region, np.float32, [2] + self.SHAPE)[1]

    def test_inputs_are_read_behind_the_event(self):
        reached = 'normd_event_waits_total{end="reached"}'
        before = self.server.metric(reached)
        for rounds in [0, 1, 3, 30, 100, 0, 10]:
            self.begin(rounds)
            self.infer()
            self.assertTrue(self.work.is_done())
            np.testing.assert_array_equal(self.result(), self.y)
        self.assertEqual(self.server.metric(reached), before + 7)

    def test_an_event_that_is_made_anew_is_the_one_that_is_asked_for(self):
        handles = set()
        for rounds in [30, 0, 100, 10, 30, 100]:
            runtime.cudaEventDestroy(self.work.event)
            self.work.new_event()
            handles.add(self.work.handle)
            self.begin(rounds)
            self.infer()
            self.assertTrue(self.work.is_done())
            np.testing.assert_array_equal(self.result(), self.y)
        print(f"\n6 events that were made one after the other had {len(handles)} handles")

    def test_others_are_answered_meanwhile(self):
        self.begin(300)
        with futures.ThreadPoolExecutor(1) as pool:
            call = pool.submit(self.infer)
            while self.server.metric("normd_event_waiting_requests") == 0 and not call.done():
                pass
            np.testing.assert_array_equal(shared.by_message(self.client, self.x), self.y)
            self.assertFalse(self.work.is_done(), "it was to last longer than a call")
            call.result()
        np.testing.assert_array_equal(self.result(), self.y)

    def test_a_wait_has_an_end(self):
        self.begin(500)
        with self.assertRaisesRegex(triton.InferenceServerException, r'parameters\["timeout"\]: the event'):
            self.infer(timeout=20000)
        self.assertFalse(self.work.is_done())
        runtime.cudaStreamSynchronize(self.work.stream)
        self.infer()
        np.testing.assert_array_equal(self.result(), self.y)

    def test_what_the_driver_refuses(self):
        handle = self.work.handle
        self.work.handle = base64.b64encode(bytes(64)).decode()
        with self.assertRaisesRegex(triton.InferenceServerException, "event_handle: wanted"):
            self.infer()
        self.work.handle = handle
        self.begin(10)
        self.infer()
        np.testing.assert_array_equal(self.result(), self.y)

    def test_a_process_that_dies_while_its_request_waits(self):
        for _ in range(3):
            child = subprocess.Popen(  # Its pipes end with it.
                [sys.executable, "-c", WORKING_CHILD, os.path.dirname(os.path.abspath(__file__)),
                 str(2 * self.SIZE), str(shared.OPTIONS.device)],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            memory, event = child.stdout.readline().split()
            self.client.register_cuda_shared_memory("c", memory.encode(), shared.OPTIONS.device,
                                                    2 * self.SIZE)
            with futures.ThreadPoolExecutor(1) as pool:
                call = pool.submit(shared.in_region, self.client, "c", self.SHAPE, 0, self.SIZE,
                                   parameters={"event_handle": event}, timeout=2000000)
                while self.server.metric("normd_event_waiting_requests") == 0 and not call.done():
                    pass
                child.kill()
                child.wait()
                try:
                    call.result()
                    how = "the event counts as reached"
                except triton.InferenceServerException as error:
                    how = str(error)
            print(f"\na client that was killed while its request waited: {how}")
            self.client.unregister_cuda_shared_memory("c")
        self.begin(10)
        self.infer()
        np.testing.assert_array_equal(self.result(), self.y)

    def test_events_that_come_and_go_leave_nothing(self):
        def rounds(count):
            begin = time.monotonic()
            for _ in range(count):
                runtime.cudaEventDestroy(self.work.event)
                self.work.new_event()
                self.work.record()
                self.infer()
            return 1e6 * (time.monotonic() - begin) / count

        self.begin(0)
        rounds(100)
        files, maps = f"/proc/{self.server.process.pid}/fd", f"/proc/{self.server.process.pid}/maps"

        def held():
            time.sleep(0.5)  # Until the last event is closed.
            with open(maps, encoding="utf-8") as lines:
                return self.server.free_device_bytes(), len(os.listdir(files)), sum(1 for _ in lines)

        before = held()
        each = rounds(2000)
        after = held()
        print(f"\n2000 events, {each:.0f} us each: free bytes, files, mappings {before} before, "
              f"{after} after")
        self.assertGreaterEqual(after[0], before[0] - (16 << 20))
        self.assertLessEqual(after[1], before[1] + 16)
        self.assertLessEqual(after[2], before[2] + 64)


if __name__ == "__main__":
    shared.main()
