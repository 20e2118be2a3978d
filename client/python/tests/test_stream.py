"""Streams: from and to arrays, memory maps and files, in chunks of any size."""

from __future__ import annotations

import contextlib
import re
import resource
import subprocess
import sys
import warnings

import numpy as np
import pytest

import normd
from normd import _protocol
from normd._dtypes import FLOAT32
from normd._stream import StreamOrder
from normd._tensors import TensorSpec

MODEL = "instance_norm_64"


def random(shape, seed=1):
    return np.random.default_rng(seed).normal(size=shape).astype("f4")


@pytest.fixture
def x():
    return random((2, 64, 33, 17))


@pytest.fixture
def expected(client, x):
    return client.normalize(MODEL, x).copy()


@pytest.mark.parametrize("chunk_bytes", [3, 1021, 4096, 65537, 1 << 20, 1 << 40])
def test_chunks_of_any_size_give_the_bits_of_one_call(client, x, expected, chunk_bytes):
    if chunk_bytes < 100:
        x = random((1, 64, 5))
        expected = client.normalize(MODEL, x)
    response = client.normalize_stream(MODEL, x, chunk_bytes=chunk_bytes)
    assert np.array_equal(response.output, expected)
    assert response.output.flags.writeable
    assert response.stages.compute_ns > 0


@pytest.mark.parametrize("source", ["array", "map", "path", "str"])
@pytest.mark.parametrize("sink", ["none", "array", "map", "path"])
def test_every_source_to_every_sink(client, x, expected, tmp_path, source, sink):
    np.save(tmp_path / "x.npy", x)
    inputs = {
        "array": x,
        "map": np.load(tmp_path / "x.npy", mmap_mode="r"),
        "path": tmp_path / "x.npy",
        "str": str(tmp_path / "x.npy"),
    }[source]
    target = tmp_path / "y.npy"
    out = {
        "none": None,
        "array": np.empty_like(x),
        "path": target,
        "map": np.lib.format.open_memmap(target, "w+", x.dtype, x.shape) if sink == "map" else None,
    }[sink]
    output = client.normalize_stream(MODEL, inputs, out=out).output
    if sink == "path":
        assert output == target
        assert not target.with_name("y.npy.part").exists()
        output = np.load(target)
    elif out is not None:
        assert output is out
    assert np.array_equal(output, expected)


def test_files_are_those_of_normctl(client, normctl, tmp_path, x):
    np.save(tmp_path / "x.npy", x)
    normctl("normalize", "--stream=always", "--model", MODEL, tmp_path / "x.npy",
            "-o", tmp_path / "a.npy")  # fmt: skip
    client.normalize_stream(MODEL, tmp_path / "x.npy", out=tmp_path / "b.npy")
    assert (tmp_path / "a.npy").read_bytes() == (tmp_path / "b.npy").read_bytes()


def test_output_may_be_the_input(client, x, expected, tmp_path):
    np.save(tmp_path / "x.npy", x)
    client.normalize_stream(MODEL, tmp_path / "x.npy", out=tmp_path / "x.npy")
    assert np.array_equal(np.load(tmp_path / "x.npy"), expected)
    assert client.normalize_stream(MODEL, x, out=x).output is x
    assert np.array_equal(x, expected)


@pytest.mark.parametrize("name", ["y.npy.part", "link.npy"])
@pytest.mark.parametrize("mapped", [False, True])
def test_an_output_is_not_written_over_an_input_that_is_read(client, x, tmp_path, name, mapped):
    np.save(tmp_path / "x.npy", x)
    (tmp_path / "x.npy").rename(tmp_path / "y.npy.part")
    (tmp_path / "link.npy").symlink_to(tmp_path / "y.npy.part")
    source = tmp_path / name
    with pytest.raises(normd.InvalidArgumentError, match="which is an input") as error:
        client.normalize_stream(
            MODEL, np.load(source, mmap_mode="r") if mapped else source, out=tmp_path / "y.npy"
        )
    assert error.value.field == "out"
    assert np.array_equal(np.load(source), x)


def test_empty_tensor(client):
    assert client.normalize_stream(MODEL, np.empty((0, 64, 3), "f4")).output.shape == (0, 64, 3)


def test_progress_counts_to_the_end(client, x):
    seen = []
    client.normalize_stream(MODEL, x, progress=lambda done, total: seen.append((done, total)))
    assert seen == sorted(seen)
    assert seen[-1] == (x.nbytes, x.nbytes)


def test_progress_bar_is_shown(client, x, capsys):
    pytest.importorskip("tqdm")
    client.normalize_stream(MODEL, x, progress=True)
    assert "100%" in capsys.readouterr().err


def test_progress_without_tqdm_says_so(client, x, monkeypatch):
    monkeypatch.setitem(sys.modules, "tqdm", None)
    with pytest.raises(normd.InvalidArgumentError, match="tqdm"):
        client.normalize_stream(MODEL, x, progress=True)


def test_error_of_the_callable_comes_through_and_removes_the_file(client, x, tmp_path):
    def fail(done, total):
        raise RuntimeError("enough")

    with pytest.raises(RuntimeError, match="enough"):
        client.normalize_stream(MODEL, x, out=tmp_path / "y.npy", progress=fail)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (b"", "not a .npy file"),
        (b"\x93NUMPY\x01\x00\xff\xff{", "not a .npy file"),
        (b"not an array at all", "not a .npy file"),
    ],
)
def test_file_that_is_no_npy(client, tmp_path, content, text):
    path = tmp_path / "x.npy"
    path.write_bytes(content)
    with pytest.raises(normd.InvalidArgumentError, match=text) as error:
        client.normalize_stream(MODEL, path)
    assert str(path) in str(error.value)


def test_file_of_the_wrong_kind(client, tmp_path, x):
    path = tmp_path / "x.npy"
    for array, advice in (
        (x.astype("i4"), 'numpy.load(path).astype("float32")'),
        (x.astype("c8"), 'numpy.load(path).astype("float32")'),
        (x.astype("O")[:1], 'numpy.load(path, allow_pickle=True).astype("float32")'),
        (np.zeros(3, [("a", "f4")]), 'numpy.load(path)["FIELD"]'),
    ):
        np.save(path, array)
        with pytest.raises(normd.InvalidArgumentError, match=re.escape(advice)):
            client.normalize_stream(MODEL, path)
    np.save(path, x)
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(normd.InvalidArgumentError, match="bytes of data, wanted"):
        client.normalize_stream(MODEL, path)
    with pytest.raises(FileNotFoundError):
        client.normalize_stream(MODEL, tmp_path / "absent.npy")
    with pytest.raises(FileNotFoundError):
        client.normalize_stream(MODEL, x, out=tmp_path / "absent" / "y.npy")


@pytest.mark.parametrize(
    ("version", "order", "descr"),
    [
        *((1, "C", descr) for descr in ("<f4", ">f4", "=f4", "f4", "float32", "|f4")),
        *((1, "F", descr) for descr in ("<f4", ">f4")),
        *((version, order, "<f4") for version in (2, 3) for order in "CF"),
    ],
)
def test_file_that_numpy_reads(client, normctl, x, expected, tmp_path, order, descr, version):
    path = tmp_path / "x.npy"
    shape = str(tuple(x.shape))
    if version < 3:
        shape = re.sub(r"(\d+)", r"\1L", shape)  # As Python 2 wrote it.
    header = (
        f"{{'descr': '{descr}', 'fortran_order': {order == 'F'}, 'shape': {shape}, }}\n".encode()
    )
    length = len(header).to_bytes(2 if version == 1 else 4, "little")
    elements = x.astype(np.dtype(descr)).tobytes(order)
    path.write_bytes(b"\x93NUMPY" + bytes([version, 0]) + length + header + elements)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # NumPy warns of Python 2.
        assert np.array_equal(np.load(path), x)
        assert np.array_equal(client.normalize_stream(MODEL, path).output, expected)
    normctl("normalize", "--stream=always", "--model", MODEL, path, "-o", tmp_path / "y.npy")
    assert np.array_equal(np.load(tmp_path / "y.npy"), expected)


def test_file_that_shrinks_while_it_is_read(client, tmp_path):
    path = tmp_path / "x.npy"
    np.save(path, random((16, 64, 64, 64)))

    def shrink(done, total):
        with path.open("r+b") as file:
            file.truncate(4096)

    with pytest.raises(normd.DataLossError, match="shrunk"):
        client.normalize_stream(MODEL, path, progress=shrink, out=tmp_path / "y.npy")
    assert list(tmp_path.iterdir()) == [path]


@contextlib.contextmanager
def largest_file(nbytes):
    """While a file can have no more bytes: what is written beyond fails, as on a full disk."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (nbytes, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


@pytest.mark.parametrize("missing", [1, 100, 20000])
@pytest.mark.parametrize("chunk_bytes", [1000, 1 << 20])
def test_a_full_disk_leaves_no_file(client, tmp_path, missing, chunk_bytes):
    x, scales = tmp_path / "x.npy", tmp_path / "scales.npy"
    np.save(x, random((6, 4096)))
    before = x.read_bytes()
    model, out = "rms_norm_4096_float8", {"y_scale": scales, "y": x}
    with largest_file(128 + 6 * 4096 - missing), pytest.raises(OSError, match="too large"):
        client.normalize_stream(model, x, out=out, chunk_bytes=chunk_bytes)
    assert list(tmp_path.iterdir()) == [x]
    assert x.read_bytes() == before
    client.normalize_stream(model, x, out=out, chunk_bytes=chunk_bytes)
    assert np.load(scales).shape == (6, 1)


def test_an_output_that_cannot_end_spoils_no_file(client, tmp_path):
    path = tmp_path / "x.npy"
    np.save(path, random((6, 1024)))
    before = path.read_bytes()
    with pytest.raises(OSError, match="No space"):  # In the last bytes of the second.
        client.normalize_stream("layer_norm_1024", path, out={"y": path, "mean": "/dev/full"})
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_no_output_is_left_where_another_cannot_be(client, tmp_path):
    target, inputs = tmp_path / "o.npy", {"x": random((6, 4096)), "residual": random((6, 4096))}

    def spoil(done, total):
        if done == total:  # A folder takes the second output's name.
            (tmp_path / "r.npy").mkdir(exist_ok=True)

    with pytest.raises(IsADirectoryError):
        client.normalize_stream(
            "add_rms_norm_4096",
            inputs,
            out={"y": target, "residual_out": tmp_path / "r.npy"},
            progress=spoil,
        )
    assert [each.name for each in tmp_path.iterdir()] == ["r.npy"]


def test_inputs_of_different_samples_are_refused(client):
    inputs = {"x": random((2, 512)), "y": random((3, 512))}
    with pytest.raises(normd.InvalidArgumentError) as error:
        client.normalize_stream("fused_linear_512", inputs)
    assert error.value.field == 'input "y": shape'


@pytest.mark.parametrize("chunk_bytes", [7, 64, 1 << 20])
@pytest.mark.parametrize(("samples", "sample_bytes"), [(6, [20, 8]), (3, [40, 16]), (0, [20, 8])])
def test_several_tensors_go_and_come_a_sample_of_each_in_turn(
    make_client, fake_server, chunk_bytes, samples, sample_bytes
):
    """A server that takes b before a, and sends its inputs back as c and d."""
    sent = []
    response = _protocol.message("normd.v1.NormalizeStreamResponse")
    model = _protocol.message("normd.v1.GetModelResponse")()
    for name in "ba":
        model.model.inputs.add(name=name)

    def echo(requests, context):
        next(requests)
        header = response()
        header.header.max_chunk_bytes = 50
        header.header.samples = samples
        header.header.outputs.add(name="c", dtype=1, shape=[3, 2, 5])
        header.header.outputs.add(name="d", dtype=1, shape=[3, 2, 2])
        yield header.SerializeToString()
        for request in requests:
            sent.append(request[2:])
            assert len(sent[-1]) <= min(50, chunk_bytes)
            yield response(chunk=request[2:]).SerializeToString()
        yield response(trailer={}).SerializeToString()

    server = fake_server(NormalizeStream=echo, GetModel=lambda *_: model.SerializeToString())
    client = make_client(server.address)
    a, b = random((3, 2, 2)), random((3, 2, 5))
    got = client.normalize_stream("m", {"a": a, "b": b}, chunk_bytes=chunk_bytes).outputs
    assert np.array_equal(got["c"], b)
    assert np.array_equal(got["d"], a)
    stream = b"".join(sent)
    of_b, of_a = sample_bytes
    assert stream[:of_b] == b.tobytes()[:of_b]
    assert stream[of_b : of_b + of_a] == a.tobytes()[:of_a]


@pytest.mark.parametrize("samples", [-1, 4, 1 << 40])
def test_samples_that_do_not_fit_break_the_protocol(make_client, fake_server, samples):
    response = _protocol.message("normd.v1.NormalizeStreamResponse")

    def answer(requests, context):
        header = response()
        header.header.max_chunk_bytes = 50
        header.header.samples = samples
        header.header.outputs.add(dtype=1, shape=[3])
        yield header.SerializeToString()

    client = make_client(fake_server(NormalizeStream=answer).address)
    with pytest.raises(normd.ProtocolError, match="samples"):
        client.normalize_stream("m", random((3,)))


@pytest.mark.parametrize("chunk_bytes", [0, -1, 1.5, "1"])
def test_chunk_bytes_are_checked(client, x, chunk_bytes):
    with pytest.raises(normd.InvalidArgumentError) as error:
        client.normalize_stream(MODEL, x, chunk_bytes=chunk_bytes)
    assert error.value.field == "chunk_bytes"


def test_order_of_several_tensors_is_a_sample_of_each_in_turn():
    specs = [TensorSpec("a", FLOAT32, (3, 2)), TensorSpec("b", FLOAT32, (3, 5))]
    want = [("a", i) if i < 8 else ("b", i - 8) for i in range(28)]
    for most in (1, 3, 8, 28, 84):
        order = StreamOrder(specs, 3)
        got = []
        left = 84
        while left:
            tensor, offset, size = order.take(min(most, left))
            got += [("ab"[tensor], offset + i) for i in range(size)]
            left -= size
        assert got == [
            (name, byte + sample * (8 if name == "a" else 20))
            for sample in range(3)
            for name, byte in want
        ]


def test_a_file_larger_than_its_memory(server, tmp_path):
    """256 MiB from file to file, in a process that grows by less than 128 MiB."""
    path = tmp_path / "x.npy"
    file = np.lib.format.open_memmap(path, "w+", "f4", (4, 64, 512, 512))
    file[:, ::7, ::5] = 1.5
    del file
    script = f"""
import resource, numpy as np, normd
with normd.Client({server.address!r}) as client:
    client.normalize({MODEL!r}, np.ones((1, 64, 4), "f4"))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    client.normalize_stream({MODEL!r}, {str(path)!r}, out={str(tmp_path / "y.npy")!r})
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
print(grown)
assert grown < 128 * 1024, grown
"""
    result = subprocess.run(
        [sys.executable, "-c", script], check=False, timeout=300, capture_output=True, text=True
    )
    assert result.returncode == 0, result.stderr
    assert (tmp_path / "y.npy").stat().st_size == path.stat().st_size
