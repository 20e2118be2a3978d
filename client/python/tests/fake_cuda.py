"""CUDA in the host's memory, and a server that opens such memory.

FakeCuda takes the place of PyTorch's CUDA: tensors that it made count as a device's. DeviceServer
stands before a real normd: it opens regions as normd does, has the real one compute what lies
there, by messages, and notes each breach of what a client owes to CUDA and to the server.
"""

from __future__ import annotations

import contextlib
import secrets
import threading
from concurrent import futures
from typing import Any

import grpc
import numpy as np
import torch

from normd import _cuda, _protocol, _wire
from normd._cuda import BLOCK_BYTES, HANDLE_BYTES, Allocation
from normd.errors import UnavailableError

LIMIT_S = 60
POISON = 0xDD

GetServerInfoResponse = _protocol.message("normd.v1.GetServerInfoResponse")
NormalizeRequest = _protocol.message("normd.v1.NormalizeRequest")
NormalizeResponse = _protocol.message("normd.v1.NormalizeResponse")


class FakeDriver:
    """Memory by its handles. It stays there when it is freed, so that its use can be seen."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.by_handle: dict[bytes, FakeMemory] = {}
        self.fails = ""
        self.breaches: list[str] = []

    def allocate(self, device: int, nbytes: int) -> Allocation:
        if self.fails:
            raise UnavailableError(f"CUDA: cuMemAlloc_v2: {self.fails}")
        if nbytes % BLOCK_BYTES:
            self.breaches.append(f"{nbytes} bytes share a block with other memory")
        memory = FakeMemory(device, nbytes)
        with self.lock:
            self.by_handle[memory.handle] = memory
        return Allocation(memory.address, memory.handle)

    def free(self, device: int, address: int) -> None:
        with self.lock:
            (memory,) = [each for each in self.by_handle.values() if each.address == address]
        if memory.freed or memory.device != device:
            self.breaches.append("freed twice, or of another device")
        if memory.opened:
            self.breaches.append("freed while the server has it open")
        memory.freed = True
        memory.bytes[...] = POISON

    @property
    def live(self) -> int:
        """Allocations that are not freed."""
        return sum(not each.freed for each in self.by_handle.values())


class FakeMemory:
    def __init__(self, device: int, nbytes: int) -> None:
        self.device = device
        self.bytes = np.zeros(nbytes, np.uint8)
        self.address = int(self.bytes.__array_interface__["data"][0])
        self.handle = secrets.token_bytes(HANDLE_BYTES)
        self.freed = False
        self.opened = 0


class FakeEvent:
    """Covers so much of each stream's work."""

    def __init__(self, covered: dict[FakeStream, int]) -> None:
        self.covered = covered

    def synchronize(self) -> None:
        for stream, work in self.covered.items():
            stream.done = max(stream.done, work)


class FakeStream:
    """Counts what it is given; what of that is done is known when an event was waited for."""

    def __init__(self) -> None:
        self.given = 0
        self.done = 0
        self.waited: dict[FakeStream, int] = {}
        self.device_index = 0

    def record_event(self) -> FakeEvent:
        return FakeEvent({**self.waited, self: self.given})

    def wait_event(self, event: FakeEvent) -> None:
        for stream, work in event.covered.items():
            self.waited[stream] = max(work, self.waited.get(stream, 0))


class FakeCuda(_cuda.Cuda):
    """The seam's other side. `current` is the stream of every thread and device."""

    def __init__(self) -> None:
        super().__init__()
        self.fake_driver = FakeDriver()
        self.streams = [FakeStream()]
        self.current = self.streams[0]
        self.lock = threading.Lock()
        self.breaches: list[str] = []
        self._devices: dict[int, tuple[int, Any]] = {}  # By a storage's address, which it keeps.

    def tensor(self, values: Any, device: int = 0) -> torch.Tensor:
        """A copy that counts as a device's."""
        return self._on(torch.as_tensor(values).clone(), device)

    def _on(self, tensor: torch.Tensor, device: int) -> torch.Tensor:
        storage = tensor.untyped_storage()
        self._devices[storage.data_ptr()] = (device, storage)
        return tensor

    def driver(self) -> Any:
        return self.fake_driver

    def device_of(self, tensor: Any) -> int | None:
        return self._devices.get(tensor.untyped_storage().data_ptr(), (None, None))[0]

    def device_number(self, device: object) -> int:
        if isinstance(device, int):
            return device
        return int(str(device).removeprefix("cuda:"))

    def over(self, memory: Any) -> Any:
        flat = torch.from_numpy(np.asarray(Holder(memory)))
        # The second is its finalizer, if it is watched.
        self._devices[flat.data_ptr()] = (memory.device, None)
        return flat

    def stream(self, device: int) -> FakeStream:
        return self.current

    @contextlib.contextmanager
    def on(self, stream: FakeStream) -> Any:
        yield
        stream.given += 1


class Holder:
    """What NumPy makes an array of, which holds this."""

    def __init__(self, memory: Any) -> None:
        self.memory = memory
        self.__array_interface__ = memory.__cuda_array_interface__


class Region:
    def __init__(self, memory: FakeMemory, nbytes: int) -> None:
        self.memory = memory
        self.nbytes = nbytes
        self.in_use = 0


class Refusal(Exception):  # noqa: N818
    """A status."""

    def __init__(self, code: str, text: str) -> None:
        super().__init__(text)
        self.code = grpc.StatusCode[code]


class DeviceServer:
    """Before the real server at `target`. Its device k + `shift` is the client's device k."""

    def __init__(self, target: str, cuda: FakeCuda, devices: int = 2, shift: int = 0) -> None:
        self.cuda = cuda
        self.shift = shift
        self.lanes = [f"cuda:{at}/{lane}" for at in range(devices) for lane in range(2)]
        self.lock = threading.Lock()
        self.regions: dict[str, Region] = {}
        self.registered = 0  # Calls that succeeded.
        self.inputs: list[tuple[str, int]] = []  # In regions: where each was.
        self.outputs: list[tuple[str, int]] = []
        self.requests = 0
        self.refuse: dict[str, Refusal] = {}  # By method.
        self.handlers: dict[str, Any] = {}  # In the place of the server's own.
        self.hold = threading.Event()  # Cleared, requests wait when they have found their tensors.
        self.hold.set()
        self.holding = threading.Semaphore(0)
        self.breaches: list[str] = []
        self.checks_order = True  # For the calls of one thread.
        self._real = grpc.insecure_channel(target, [("grpc.max_receive_message_length", -1)])
        self._executor = futures.ThreadPoolExecutor(16)
        options = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
        self._server = grpc.server(self._executor, options=options)
        own = {
            "Normalize": self._normalize,
            "GetServerInfo": self._server_info,
            "GetModel": lambda request, context: self._forward("GetModel", request, context),
        }
        shared = {
            "CudaSharedMemoryRegister": self._register,
            "CudaSharedMemoryUnregister": self._unregister,
        }
        for service, table in (
            (_protocol.SERVICE, own),
            ("inference.GRPCInferenceService", shared),
        ):
            handlers = {
                name: grpc.unary_unary_rpc_method_handler(self._checked(name, handler))
                for name, handler in table.items()
            }
            if service == _protocol.SERVICE:
                handlers["NormalizeStream"] = grpc.stream_stream_rpc_method_handler(self._stream)
            self._server.add_generic_rpc_handlers(
                (grpc.method_handlers_generic_handler(service, handlers),)
            )
        self.address = f"127.0.0.1:{self._server.add_insecure_port('127.0.0.1:0')}"
        self._server.start()

    def close(self) -> None:
        self.hold.set()
        self._server.stop(None).wait(LIMIT_S)
        self._executor.shutdown(wait=False)
        self._real.close()

    def restart(self) -> None:
        """As one that has been: it knows no region."""
        with self.lock:
            for region in self.regions.values():
                region.memory.opened -= 1
            self.regions.clear()

    def _checked(self, name: str, handler: Any) -> Any:
        def handle(request: bytes, context: Any) -> bytes:
            try:
                if name in self.refuse:
                    raise self.refuse[name]
                return bytes(self.handlers.get(name, handler)(request, context))
            except Refusal as refusal:
                context.abort(refusal.code, str(refusal))
                raise

        return handle

    def _forward(self, method: str, request: bytes, context: Any) -> bytes:
        try:
            call = self._real.unary_unary(_protocol.method(method))
            return bytes(call(request, timeout=LIMIT_S))
        except grpc.RpcError as error:
            context.set_trailing_metadata(error.trailing_metadata())
            context.abort(error.code(), error.details())
            raise

    def _stream(self, requests: Any, context: Any) -> Any:
        try:
            yield from self._real.stream_stream(_protocol.method("NormalizeStream"))(requests)
        except grpc.RpcError as error:
            context.abort(error.code(), error.details())

    def _server_info(self, request: bytes, context: Any) -> bytes:
        info = GetServerInfoResponse.FromString(self._forward("GetServerInfo", request, context))
        del info.lanes[:]
        info.lanes.extend(self.lanes)
        return bytes(info.SerializeToString())

    def _register(self, request: bytes, context: Any) -> bytes:
        name, handle, device, nbytes = "", b"", 0, 0
        for number, _, value, end in _wire.fields(request, 0, len(request)):
            if number == 1:
                name = _wire.text(request, value, end)
            elif number == 2:
                handle = request[value:end]
            elif number == 3:
                device = value
            elif number == 4:
                nbytes = value
        memory = self.cuda.fake_driver.by_handle.get(handle)
        if memory is None or memory.freed:
            raise Refusal("INVALID_ARGUMENT", "raw_handle: opens nothing, wanted that of memory")
        if memory.device + self.shift != device:
            raise Refusal(
                "INVALID_ARGUMENT",
                f"device_id: {device}, wanted the device of the handle's memory, "
                f"{memory.device + self.shift}",
            )
        if nbytes > memory.bytes.nbytes:
            raise Refusal("OUT_OF_RANGE", f"byte_size: {nbytes}, wanted at most the allocation's")
        with self.lock:
            if name in self.regions:
                raise Refusal("ALREADY_EXISTS", f'name: "{name}" is registered')
            memory.opened += 1
            self.regions[name] = Region(memory, nbytes)
            self.registered += 1
        return b""

    def _unregister(self, request: bytes, context: Any) -> bytes:
        (name,) = [
            _wire.text(request, at, end) for _, _, at, end in _wire.fields(request, 0, len(request))
        ]
        how = dict(context.invocation_metadata()).get("normd-in-use", "finish")
        with self.lock:
            region = self.regions.get(name)
            if region is None:
                raise Refusal("NOT_FOUND", "region: not registered")
            if how == "refuse" and region.in_use:
                raise Refusal("FAILED_PRECONDITION", "region: in use")
            del self.regions[name]
        while how == "wait" and region.in_use and context.is_active():
            self.hold.wait(0.01)
        region.memory.opened -= 1
        return b""

    def _normalize(self, request: bytes, context: Any) -> bytes:
        self.requests += 1
        message = NormalizeRequest.FromString(request)
        with self.lock:
            used = self._find(message)
            for region in used.values():
                region.in_use += 1
        try:
            if not used:
                return self._forward("Normalize", request, context)
            self._check_order()
            return self._compute(message, used, context)
        finally:
            with self.lock:
                for region in used.values():
                    region.in_use -= 1

    def _check_order(self) -> None:
        late = any(stream.given > stream.done for stream in self.cuda.streams)
        if self.checks_order and late:
            self.breaches.append("a request is sent before its streams have ended")

    def _find(self, message: Any) -> dict[str, Region]:
        """The regions that a request names, all of its parts checked."""
        places = []
        used: dict[str, Region] = {}
        devices = set()
        for field in ("inputs", "outputs"):
            for at, tensor in enumerate(getattr(message, field)):
                part = tensor.shared_memory
                if not part.region:
                    continue
                where = f"{field}[{at}].shared_memory"
                region = self.regions.get(part.region)
                if region is None:
                    raise Refusal("NOT_FOUND", f'{where}: region "{part.region}": not registered')
                if (
                    part.offset < 0
                    or part.byte_size <= 0
                    or part.offset + part.byte_size > region.nbytes
                ):
                    raise Refusal("OUT_OF_RANGE", f"{where}: wanted a part of its bytes")
                if part.offset % 8:
                    raise Refusal("INVALID_ARGUMENT", f"{where}: not aligned")
                if field == "inputs" and tensor.dtype == 7:
                    raise Refusal("INVALID_ARGUMENT", f"{where}: indexes lie on the host")
                if region.memory.freed:
                    self.breaches.append("a request names memory that is freed")
                devices.add(region.memory.device)
                used[part.region] = region
                begin = region.memory.address + part.offset
                places.append((field, begin, begin + part.byte_size))
                seen = self.inputs if field == "inputs" else self.outputs
                seen.append((part.region, part.offset))
        if len(devices) > 1:
            raise Refusal("INVALID_ARGUMENT", "inputs: on several devices")
        _check_overlaps(places)
        return used

    def _compute(self, message: Any, used: dict[str, Region], context: Any) -> bytes:
        """What the real server makes of it, each tensor written to its place."""
        for tensor in message.inputs:
            if tensor.HasField("shared_memory"):
                tensor.data = _bytes(used, tensor.shared_memory).tobytes()
                tensor.ClearField("shared_memory")
        self.holding.release()
        self.hold.wait(LIMIT_S)
        placed = {}
        for output in message.outputs:
            if output.HasField("shared_memory"):
                placed[output.name] = _copy_of(output.shared_memory)
                output.ClearField("shared_memory")
        response = NormalizeResponse.FromString(
            self._forward("Normalize", message.SerializeToString(), context)
        )
        for tensor in response.outputs:
            part = placed.get(tensor.name) or (
                placed.get("") if len(response.outputs) == 1 else None
            )
            if part is None:
                continue
            size = len(tensor.data)
            if part.byte_size < size:
                raise Refusal("INVALID_ARGUMENT", f"outputs[0].shared_memory: wanted {size} bytes")
            _bytes(used, part)[:size] = np.frombuffer(tensor.data, np.uint8)
            tensor.data = b""
            part.byte_size = size
            tensor.shared_memory.CopyFrom(part)
        return bytes(response.SerializeToString())


def _bytes(used: dict[str, Region], part: Any) -> Any:
    return used[part.region].memory.bytes[part.offset : part.offset + part.byte_size]


def _copy_of(part: Any) -> Any:
    copy = type(part)()
    copy.CopyFrom(part)
    return copy


def _check_overlaps(places: list[tuple[str, int, int]]) -> None:
    for field, begin, end in places:
        for other in places:
            same = other in ((field, begin, end), ("inputs", begin, end))
            if field == "outputs" and not same and other[1] < end and begin < other[2]:
                raise Refusal("INVALID_ARGUMENT", "outputs[0].shared_memory: overlaps")
