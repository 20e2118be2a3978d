"""Tensors in memory that the server has mapped too: of the caller's regions, and of the pool."""

from __future__ import annotations

import contextlib
import gc
import re
import shutil
import threading
import time
import urllib.request
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import REPOSITORY, Server

import normd
from normd._sharing import is_local

SHAPE = (2, 64, 16, 16)  # 128 KiB of float32.


def random(shape=SHAPE, dtype="f4", seed=1):
    return np.random.default_rng(seed).normal(size=shape).astype(dtype)


class SharingServer(Server):
    """A normd that takes memory, and what it says about it."""

    def __init__(self, binaries: Path, folder: Path, *flags: str) -> None:
        self.handover = f"unix://{folder}/regions"
        self.path = f"unix:{folder}/grpc"
        super().__init__(
            binaries,
            f"--listen=unix://{folder}/grpc,127.0.0.1:0",
            "--shared_memory=fd",
            f"--shared_memory_listen={self.handover}",
            *flags,
        )

    def text(self) -> str:
        """All metrics."""
        with urllib.request.urlopen(f"http://{self.metrics}/metrics", timeout=10) as response:
            return str(response.read().decode())

    def count(self, series: str) -> float:
        """A metric's value."""
        text = self.text()
        found = re.findall(rf"^{re.escape(series)} (\S+)$", text, re.MULTILINE)
        assert found, f"{series} in\n{text}"
        return float(found[0])

    def failures(self, code: str) -> int:
        """Normalize calls that ended so."""
        found = re.findall(rf'^normd_requests_total{{.*code="{code}".*}} (\d+)$', self.text(), re.M)
        return sum(map(int, found))

    def received(self) -> float:
        """Bytes of inputs in regions."""
        return self.count('normd_shared_tensor_bytes_total{direction="in",memory="host"}')


@pytest.fixture(scope="module")
def sharing(binaries: Path, tmp_path_factory: Any) -> Any:
    folder = tmp_path_factory.mktemp("sharing")
    with contextlib.closing(SharingServer(binaries, folder)) as running:
        yield running


@pytest.fixture(params=["tcp", "unix"])
def near(request, make_client, sharing):
    """A client that shares by itself."""
    return make_client(sharing.address if request.param == "tcp" else sharing.path)


@pytest.fixture
def far(make_client, sharing):
    """One that sends messages."""
    return make_client(sharing.address, shared_memory="off")


@pytest.mark.parametrize("dtype", ["f4", "f8", "f2"])
@pytest.mark.parametrize(
    ("model", "shape"),
    [
        ("instance_norm_64", (4, 64, 33, 31)),
        ("rms_norm_4096", (64, 4096)),
        ("layer_norm_1024", (99, 1024)),
    ],
)
def test_the_bits_are_those_of_messages(sharing, near, far, model, shape, dtype):
    x = random(shape, dtype)
    expected = far.normalize(model, x)
    before = sharing.received()
    got = near.normalize(model, x)
    assert sharing.received() == before + x.nbytes, "it went in a region"
    out = np.full_like(x, 7)
    assert near.normalize(model, x, out=out) is out
    # What is not dense is copied first.
    wide = np.zeros((*shape[:-1], shape[-1] + 3), dtype)
    wide[..., 3:] = x
    strided = near.normalize(model, wide[..., 3:])
    swapped = near.normalize(model, x.astype(x.dtype.newbyteorder(">")))
    for each in (got, out, strided, swapped):
        assert each.dtype == expected.dtype
        assert each.tobytes() == expected.tobytes()
    assert not got.flags.writeable


def test_outputs_by_name_are_those_of_messages(near, far):
    x, residual = random((50, 4096)), random((50, 4096), seed=2)
    inputs = {"x": x, "residual": residual}
    expected = far.call("add_rms_norm_4096", inputs)
    got = near.call("add_rms_norm_4096", inputs)
    assert list(got.outputs) == list(expected.outputs)
    for name, value in expected.outputs.items():
        assert got.outputs[name].tobytes() == value.tobytes()
    out = {"rstd": None, "residual_out": np.empty_like(x)}
    some = near.call("add_rms_norm_4096", inputs, out=out)
    wanted = far.call("add_rms_norm_4096", inputs, out={"rstd": None, "residual_out": None})
    assert set(some.outputs) == set(out)
    assert some.outputs["residual_out"] is out["residual_out"]
    for name, value in wanted.outputs.items():
        assert some.outputs[name].tobytes() == value.tobytes()


def test_a_callers_region_is_used_in_place(sharing, near, far):
    x = random()
    expected = far.normalize("instance_norm_64", x)
    with near.share(3 * x.nbytes) as region:
        x_there, y_there = region.array(x.shape), region.array(x.shape)
        x_there[...] = x
        before = sharing.received()
        sent = sharing.count('normd_payload_bytes_total{direction="out"}')
        assert near.normalize("instance_norm_64", x_there, out=y_there) is y_there
        assert sharing.received() == before + x.nbytes
        assert sharing.count('normd_payload_bytes_total{direction="out"}') < sent + 1000
        assert y_there.tobytes() == expected.tobytes()
        # Its input may be its output.
        assert near.normalize("instance_norm_64", x_there, out=x_there) is x_there
        assert x_there.tobytes() == expected.tobytes()
        # One tensor there, the other here.
        assert near.normalize("instance_norm_64", x, out=y_there).tobytes() == expected.tobytes()
        x_there[...] = x
        sent = sharing.count('normd_payload_bytes_total{direction="out"}')
        result = near.normalize("instance_norm_64", x_there)
        assert result.tobytes() == expected.tobytes()
        assert sharing.count('normd_payload_bytes_total{direction="out"}') < sent + 1000
        residual = random((16, 4096), seed=2)
        inputs = {"x": region.array(residual.shape, offset=0), "residual": residual}
        both = near.call("add_rms_norm_4096", inputs).outputs
        there = {name: np.array(each) for name, each in inputs.items()}
        for name, each in far.call("add_rms_norm_4096", there).outputs.items():
            assert both[name].tobytes() == each.tobytes()
        # Small ones, and parts of arrays, too.
        small = region.array((1, 64, 2), offset=8)
        small[...] = random((1, 64, 2))
        before = sharing.received()
        part = near.normalize("instance_norm_64", small[:1])
        assert sharing.received() == before + small.nbytes
        assert part.tobytes() == far.normalize("instance_norm_64", small.copy()).tobytes()
    # Closed, its arrays are arrays.
    assert region.closed
    x_there[...] = x
    assert near.normalize("instance_norm_64", x_there, out=y_there) is y_there
    assert y_there.tobytes() == expected.tobytes()


def test_regions_are_listed(binaries, make_client, tmp_path):
    with contextlib.closing(SharingServer(binaries, tmp_path)) as server:
        client = make_client(server.path)
        assert client.list_shared_memory() == []
        with client.share(5000) as region:
            (one,) = client.list_shared_memory()
            assert (one.kind, one.nbytes, one.offset) == ("DESCRIPTOR", 5000, 0)
            assert one.writable
            assert not one.in_use
            assert not one.broken
            assert one.age_ns > 0
            assert region.name not in repr(one), "a name is its client's secret"
            (later,) = client.list_shared_memory()
            assert later.age_ns > one.age_ns


def test_arrays_of_several_threads_do_not_overlap(sharing):
    with contextlib.closing(normd.Client(sharing.path)) as client:
        region = client.share(400 * 4096)
        arrays: list[Any] = []
        threads = [
            threading.Thread(target=lambda: arrays.extend(region.array(1) for _ in range(50)))
            for _ in range(8)
        ]
        for each in threads:
            each.start()
        for each in threads:
            each.join()
        assert len({each.__array_interface__["data"][0] for each in arrays}) == 400


def test_torch_tensors_over_a_region_are_in_place(sharing, near, far):
    torch = pytest.importorskip("torch")
    x = random()
    with near.share(x.nbytes) as region:
        there = torch.from_numpy(region.array(x.shape))
        there.copy_(torch.from_numpy(x))
        before = sharing.received()
        y = near.normalize("instance_norm_64", there)
        assert sharing.received() == before + x.nbytes
    assert isinstance(y, torch.Tensor)
    assert y.numpy().tobytes() == far.normalize("instance_norm_64", x).tobytes()
    assert near.normalize("instance_norm_64", torch.from_numpy(x)).equal(y)


def test_results_stay_whatever_comes_after_them(sharing, near):
    """Results of all lifetimes, from several threads, while their regions are used again."""
    inputs = [random(seed=seed) for seed in range(5)]
    with normd.Client(sharing.address, shared_memory="off") as client:
        expected = [client.normalize("instance_norm_64", x).tobytes() for x in inputs]
    wrong = []

    def work(seed: int) -> None:
        chance = np.random.default_rng(seed)
        held: list[tuple[int, Any]] = []
        for _ in range(150):
            k = int(chance.integers(5))
            held.append((k, near.normalize("instance_norm_64", inputs[k])[...]))
            while held and chance.random() < 0.5:
                at = int(chance.integers(len(held)))
                which, result = held.pop(at)
                if result.tobytes() != expected[which]:
                    wrong.append(which)
        for which, result in held:
            if result.tobytes() != expected[which]:
                wrong.append(which)

    before = sharing.received()
    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert not wrong
    assert sharing.received() > before + 300 * inputs[0].nbytes, "most went in regions"


def test_results_outlive_the_client(sharing, make_client, far):
    client = make_client(sharing.address)
    x = random()
    y = client.normalize("instance_norm_64", x)
    client.end() if hasattr(client, "end") else client.close()
    assert y.tobytes() == far.normalize("instance_norm_64", x).tobytes()


def test_nothing_is_left_behind(sharing):
    def held() -> tuple[int, int]:
        gc.collect()
        maps = Path("/proc/self/maps").read_text().count("normd_client")
        return sum(1 for _ in Path("/proc/self/fd").iterdir()), maps

    with contextlib.closing(normd.Client(sharing.address)) as client:
        client.normalize("instance_norm_64", random())
        before = held()
        for size in range(60):
            kept = client.normalize("instance_norm_64", random((1 + size % 7, 64, 32, 32)))
            with client.share(1 << 16) as region:
                region.array(3)
        del kept, region
        descriptors, maps = held()
        # Two of each of four sizes may wait for their next call, each with a socket and its file.
        assert descriptors <= before[0] + 16
        assert maps <= before[1] + 8
    client = normd.Client(sharing.address)
    before = held()
    client.normalize("instance_norm_64", random())
    client.close()
    assert held()[0] <= before[0] + 1  # gRPC's own.


@pytest.mark.parametrize(
    ("arguments", "options"),
    [
        (("no_such_model", random()), {}),
        (("instance_norm_64", random((2, 65, 16, 16))), {}),
        (("instance_norm_64", {"z": random()}), {}),
        (("instance_norm_64", {"x": random(), "y": random()}), {}),
        (("instance_norm_64", random((128, 256))), {"version": 7}),
        (("instance_norm_64", random(dtype="i8")), {}),
        (("instance_norm_64", random()), {"out": np.empty((2, 64), "f4")}),
        (("instance_norm_64", random()), {"out": {"q": None}}),
        (("instance_norm_64", random()), {"version": -3}),
        (("fused_linear_512", {"x": random((64, 512)), "y": random((65, 512))}), {}),
    ],
)
def test_errors_are_those_of_messages(near, far, arguments, options):
    errors = []
    for client in (far, near):
        with pytest.raises(normd.Error) as raised:
            client.call(*arguments, **options)
        errors.append((type(raised.value), raised.value.message))
    assert errors[0] == errors[1]
    # And nothing has changed for calls that are right.
    near.normalize("instance_norm_64", random())


def test_a_new_server_is_found(binaries, make_client, tmp_path):
    x = random()
    with contextlib.closing(SharingServer(binaries, tmp_path)) as first:
        client = make_client(first.path)
        expected = client.normalize("instance_norm_64", x).tobytes()
        kept = [client.normalize("instance_norm_64", x) for _ in range(3)]
        first.kill()
    with contextlib.closing(SharingServer(binaries, tmp_path)) as second:
        client.wait_ready()
        deadline = time.monotonic() + 30
        while second.received() == 0:
            assert client.normalize("instance_norm_64", x).tobytes() == expected
            assert time.monotonic() < deadline, "regions are used again"
        del kept
        for _ in range(8):  # Also where the old server's come back to the pool.
            assert client.normalize("instance_norm_64", x).tobytes() == expected


def test_another_servers_address_costs_a_call_a_second_at_most(binaries, make_client, tmp_path):
    folders = [tmp_path / name for name in "ab"]
    for folder in folders:
        folder.mkdir()
    x = random()
    with (
        contextlib.closing(SharingServer(binaries, folders[0])) as server,
        contextlib.closing(SharingServer(binaries, folders[1])) as other,
    ):
        expected = make_client(server.path).normalize("instance_norm_64", x).tobytes()
        client = make_client(server.path, shared_memory=other.handover)
        begun = time.monotonic()
        for _ in range(50):
            assert client.normalize("instance_norm_64", x).tobytes() == expected
        seconds = time.monotonic() - begun
        assert 1 <= server.failures("NOT_FOUND") <= 1 + seconds


def test_a_server_that_hangs_spoils_no_later_result(binaries, make_client, tmp_path):
    with contextlib.closing(SharingServer(binaries, tmp_path)) as server:
        client = make_client(server.path)
        inputs = [random(seed=seed) for seed in range(2)]
        expected = [client.normalize("instance_norm_64", x).tobytes() for x in inputs]
        for _ in range(5):
            with server.paused(), pytest.raises(normd.DeadlineExceededError):
                client.normalize("instance_norm_64", inputs[0], timeout=0.1)
            # The server now computes the first, whose region nobody else has.
            results = [client.normalize("instance_norm_64", inputs[1]) for _ in range(4)]
            assert all(each.tobytes() == expected[1] for each in results)


def test_a_server_without_room_gets_messages(binaries, make_client, tmp_path):
    flags = ("--max_shared_regions=1", "--max_identity_shared_regions=1")
    with contextlib.closing(SharingServer(binaries, tmp_path, *flags)) as server:
        client = make_client(server.path)
        x = random()
        kept = [client.normalize("instance_norm_64", x) for _ in range(5)]
        assert server.received() == x.nbytes
        assert len({each.tobytes() for each in kept}) == 1
        with pytest.raises(normd.ResourceExhaustedError, match="shared memory"):
            client.share(1 << 20)


def test_a_model_that_changes_its_outputs_gives_them_all(binaries, make_client, tmp_path):
    repository = tmp_path / "models"
    shutil.copytree(REPOSITORY / "instance_norm_64", repository / "m")
    config = repository / "m" / "config.textproto"
    flags = (f"--model_repository={repository}",)
    with contextlib.closing(SharingServer(binaries, tmp_path, *flags)) as server:
        client = make_client(server.path)
        messages = make_client(server.path, shared_memory="off")
        x = random()
        assert list(client.call("m", x).outputs) == list(messages.call("m", x).outputs)
        config.write_text(config.read_text() + "\nquantization { dtype: INT8 scales: PER_ROW }\n")
        messages.load_model("m", version=1)
        expected = messages.call("m", x).outputs
        assert list(expected) == ["y", "y_scale"]
        for _ in range(2):
            got = client.call("m", x).outputs
            assert list(got) == list(expected)
            assert all(got[name].tobytes() == expected[name].tobytes() for name in got)


def test_share_says_what_is_wrong(sharing, server, make_client):
    client = make_client(sharing.address)
    for nbytes in (0, -1, "1"):
        with pytest.raises(normd.InvalidArgumentError, match=r"nbytes: .*, wanted an int"):
            client.share(nbytes)
    region = client.share(1 << 16)
    for arguments, field in (
        (((1 << 14) + 1,), "shape"),
        ((-1,), "shape"),
        ((2.5,), "shape"),
        (("3",), "shape"),
        ((3, "c8"), "dtype"),
        ((3, "nonsense"), "dtype"),
        ((3, "f4,("), "dtype"),
    ):
        with pytest.raises(normd.InvalidArgumentError, match=field):
            region.array(*arguments)
    assert region.array(np.int64(3), offset=np.int64(8)).shape == (3,)
    for offset in (-4, 2, 1 << 16, 0.5, "0"):
        with pytest.raises(normd.InvalidArgumentError, match=r"offset|shape"):
            region.array(1, offset=offset)
    for target, text in (
        (server.address, "the server takes none"),
        ([sharing.address, sharing.address], "wanted one server"),
        ("192.0.2.1:8001", "wanted one server on this machine"),
    ):
        with pytest.raises(normd.UnimplementedError, match=text):
            make_client(target).share(1)
    with pytest.raises(normd.UnimplementedError, match="off"):
        make_client(sharing.address, shared_memory="off").share(1)
    with pytest.raises(normd.UnavailableError, match="/nowhere"):
        make_client(sharing.address, shared_memory="unix:///nowhere").share(1)
    with pytest.raises(normd.InvalidArgumentError, match='shared_memory: "on", wanted'):
        make_client(sharing.address, shared_memory="on")


def test_an_address_where_nobody_listens_costs_no_call(sharing, make_client, far):
    x = random()
    client = make_client(sharing.address, shared_memory="unix:///nowhere")
    assert (
        client.normalize("instance_norm_64", x).tobytes()
        == far.normalize("instance_norm_64", x).tobytes()
    )


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        ("127.0.0.1:8001", True),
        ("localhost:8001", True),
        ("[::1]:8001", True),
        ("unix:/run/normd", True),
        ("unix:///run/normd", True),
        ("ipv4:127.0.0.1:8001", True),
        ("dns:///localhost:8001", True),
        ("dns:///127.0.0.1:8001", True),
        ("ipv4:127.0.0.1:1,127.0.0.1:2", False),
        ("dns:///normd.internal:8001", False),
        ("10.0.0.1:8001", False),
        ("127.example.com:8001", False),
        ("localhost.example.com:8001", False),
        ("dns://127.0.0.1/localhost:8001", False),
    ],
)
def test_what_is_local(target, expected):
    assert is_local(target) == expected
