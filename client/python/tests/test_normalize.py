"""Arrays go in, the same bits come out as from the C++ client."""

from __future__ import annotations

import numpy as np
import pytest

import normd

ml_dtypes = pytest.importorskip("ml_dtypes")

CASES = [
    ("instance_norm_64", (2, 64, 7, 5), "f4"),
    ("instance_norm_64", (3, 64, 9), "f8"),
    ("group_norm_64_8", (2, 64, 11), "f2"),
    ("layer_norm_1024", (3, 5, 1024), "f4"),
    ("rms_norm_4096", (2, 4096), "f4"),
    ("batch_norm_64", (0, 64, 3), "f4"),
    ("rms_norm_4096", (1, 4096), ml_dtypes.bfloat16),
]


def random(shape, dtype="f4", seed=1):
    return np.random.default_rng(seed).normal(size=shape).astype(dtype)


def same_bits(a, b):
    return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()


@pytest.mark.parametrize(("model", "shape", "dtype"), CASES)
def test_bits_are_those_of_normctl(client, normctl, tmp_path, model, shape, dtype):
    x = random(shape, dtype)
    np.save(tmp_path / "x.npy", x)
    normctl("normalize", "--model", model, tmp_path / "x.npy", "-o", tmp_path / "y.npy")
    expected = np.load(tmp_path / "y.npy")
    y = client.normalize(model, x)
    assert y.dtype == x.dtype
    assert y.shape == shape
    assert y.tobytes() == expected.tobytes()
    assert same_bits(client.normalize_stream(model, x).output, y)


def test_two_inputs_in_any_order_are_those_of_normctl(client, normctl, tmp_path):
    x, y = random((6, 512)), random((6, 512), seed=2)
    np.save(tmp_path / "x.npy", x)
    np.save(tmp_path / "y.npy", y)
    normctl("normalize", "--model", "fused_linear_512", f"x={tmp_path}/x.npy",
            f"y={tmp_path}/y.npy", "-o", tmp_path / "out.npy")  # fmt: skip
    expected = np.load(tmp_path / "out.npy")
    assert same_bits(client.normalize("fused_linear_512", {"x": x, "y": y}), expected)
    assert same_bits(client.normalize("fused_linear_512", {"y": y, "x": x}), expected)
    for chunk_bytes, rows in ((1, 1), (999, 6), (1 << 20, 6)):
        for names in ("xy", "yx"):
            inputs = {name: {"x": x, "y": y}[name][:rows] for name in names}
            got = client.normalize_stream("fused_linear_512", inputs, chunk_bytes=chunk_bytes)
            assert same_bits(got.output, expected[:rows])


def test_two_outputs_are_those_of_normctl(client, normctl, tmp_path):
    x, residual = random((5, 4096)), random((5, 4096), seed=2)
    np.save(tmp_path / "x.npy", x)
    np.save(tmp_path / "r.npy", residual)
    normctl("normalize", "--model", "add_rms_norm_4096", f"x={tmp_path}/x.npy",
            f"residual={tmp_path}/r.npy", "-o", f"y={tmp_path}/a.npy",
            "-o", f"residual_out={tmp_path}/b.npy")  # fmt: skip
    expected = {"y": np.load(tmp_path / "a.npy"), "residual_out": np.load(tmp_path / "b.npy")}
    inputs = {"residual": residual, "x": x}
    answers = [client.call("add_rms_norm_4096", inputs)]
    for chunk_bytes in (1013, 16384, 1 << 20):
        answers.append(
            client.normalize_stream("add_rms_norm_4096", inputs, chunk_bytes=chunk_bytes)
        )
    for answer in answers:
        assert list(answer.outputs) == ["y", "residual_out"]
        assert all(same_bits(answer.outputs[name], expected[name]) for name in expected)
        with pytest.raises(normd.InvalidArgumentError, match="residual_out"):
            _ = answer.output
    for call in (client.call, client.normalize_stream):
        out = np.empty_like(x)
        outputs = call("add_rms_norm_4096", inputs, out={"residual_out": out}).outputs
        assert list(outputs) == ["residual_out"]
        assert outputs["residual_out"] is out
        assert same_bits(out, expected["residual_out"])
        both = call("add_rms_norm_4096", inputs, out={"y": out, "residual_out": None}).outputs
        assert same_bits(out, expected["y"])
        assert same_bits(both["residual_out"], expected["residual_out"])
        for wrong in (out, {"z": out}):
            with pytest.raises(normd.InvalidArgumentError) as error:
                call("add_rms_norm_4096", inputs, out=wrong)
            assert error.value.field in {"out", "outputs[0].name"}
    with pytest.raises(normd.InvalidArgumentError, match="residual_out"):
        client.normalize("add_rms_norm_4096", inputs)


def test_call_tells_stages_and_batch(client):
    response = client.call("instance_norm_64", {"x": random((1, 64, 4))})
    assert (response.model, response.version) == ("instance_norm_64", 1)
    assert response.stages.decode_ns > 0
    assert response.batch.requests >= 1
    assert response.batch.lane.startswith("cpu")
    assert next(iter(response.outputs.values())) is response.output


@pytest.mark.parametrize("form", ["strided", "fortran", "big_endian", "reversed", "subclass"])
def test_any_memory_layout_gives_the_same_bits(client, form):
    x = random((2, 64, 6, 8))
    expected = client.normalize("instance_norm_64", x)
    wide = np.zeros((2, 64, 6, 16), "f4")
    wide[..., ::2] = x
    forms = {
        "strided": wide[..., ::2],
        "fortran": np.asfortranarray(x),
        "big_endian": x.astype(">f4"),
        "reversed": x[::-1].copy()[::-1],
        "subclass": np.ma.asarray(x),
    }
    y = client.normalize("instance_norm_64", forms[form])
    assert y.dtype == np.dtype("f4")
    assert np.array_equal(y, expected)


def test_takes_what_has_array_or_dlpack(client):
    x = random((1, 64, 4))

    class Array:
        def __array__(self, dtype=None, copy=None):
            return x

    class DLPack:
        def __dlpack__(self, **options):
            return x.__dlpack__(**options)

        def __dlpack_device__(self):
            return x.__dlpack_device__()

    expected = client.normalize("instance_norm_64", x)
    assert same_bits(client.normalize("instance_norm_64", Array()), expected)
    assert same_bits(client.normalize("instance_norm_64", DLPack()), expected)


def test_two_raw_bytes_are_bfloat16(client):
    x = random((1, 4096), ml_dtypes.bfloat16)
    raw = client.normalize("rms_norm_4096", x.view("V2"))
    assert raw.dtype == np.dtype("V2")
    assert raw.tobytes() == client.normalize("rms_norm_4096", x).tobytes()


def test_result_is_a_read_only_view_or_the_array_given(client):
    x = random((1, 64, 4))
    y = client.normalize("instance_norm_64", x)
    assert not y.flags.writeable
    assert not y.flags.owndata
    out = np.empty_like(x)
    assert client.normalize("instance_norm_64", x, out=out) is out
    assert same_bits(out, y)
    assert client.call("instance_norm_64", x, out=out).output is out
    out[...] = 0
    assert client.normalize("instance_norm_64", x, out={"y": out}) is out
    assert same_bits(out, y)


@pytest.mark.parametrize(
    ("out", "field"),
    [
        (np.empty((1, 64, 4), "f8"), "out.dtype"),
        (np.empty((1, 64, 4), ">f4"), "out.dtype"),
        (np.empty((1, 64, 5), "f4"), "out.shape"),
        (np.empty((4, 64, 1), "f4").T, "out"),
        (np.broadcast_to(np.float32(0), (1, 64, 4)), "out"),
        (np.empty((1, 64, 4), "V1"), "out.dtype"),
        ([0.0], "out"),
        ({"z": np.empty((1, 64, 4), "f4")}, "outputs[0].name"),
    ],
)
def test_out_that_does_not_fit_is_refused(client, out, field):
    for call in (client.normalize, client.normalize_stream):
        with pytest.raises(normd.InvalidArgumentError) as error:
            call("instance_norm_64", random((1, 64, 4)), out=out)
        assert error.value.field == field


@pytest.mark.parametrize("shift", [-1, 0, 1, 64 * 1024, 20 * 64 * 1024, 40 * 64 * 1024])
def test_an_out_that_overlaps_the_input_gets_the_bits(client, shift):
    x = random((40, 64, 32, 32))
    expected = client.normalize("instance_norm_64", x)
    memory = np.zeros(3 * x.size, "f4")
    for call in (client.normalize, client.normalize_stream):
        there = memory[x.size : 2 * x.size].reshape(x.shape)
        there[...] = x
        out = memory[x.size + shift : 2 * x.size + shift].reshape(x.shape)
        call("instance_norm_64", there, out=out)
        assert same_bits(out, expected)


def test_two_outputs_need_two_places(client, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    torch = pytest.importorskip("torch")
    x = random((5, 4096))
    inputs = {"x": x, "residual": x}
    memory = np.zeros((11, 4096), "f4")
    tensor = torch.from_numpy(memory)
    (tmp_path / "link").symlink_to(tmp_path)
    for first, second in (
        (memory[:5], memory[:5]),
        (memory[:5], memory[4:9]),
        (memory[4:9], tensor[:5]),
        (tensor[:5], tensor[1:6]),
        ("o.npy", "o.npy"),
        ("o.npy", tmp_path / "o.npy"),
        ("link/o.npy", "o.npy"),
        ("o.npy.part", "o.npy"),
    ):
        out = {"y": first, "residual_out": second}
        for call in (client.normalize, client.call, client.normalize_stream):
            with pytest.raises(normd.InvalidArgumentError, match="overlaps") as error:
                call("add_rms_norm_4096", inputs, out=out)
            assert error.value.field == "out"
    assert [each.name for each in tmp_path.iterdir()] == ["link"]
    assert not memory.any()
    expected = client.call("add_rms_norm_4096", inputs).outputs
    for call in (client.call, client.normalize_stream):
        out = {"y": memory[:5], "residual_out": tensor[5:10], "rstd": None}
        got = call("add_rms_norm_4096", inputs, out=out).outputs
        assert all(np.array_equal(got[name], each) for name, each in expected.items())
    client.normalize_stream(
        "add_rms_norm_4096", inputs, out={"y": "/dev/null", "residual_out": "/dev/null"}
    )


def test_float8_of_another_format_is_refused(client):
    x = random((1, 4096))
    for name in ("float8_e4m3", "float8_e5m2"):
        out = np.zeros(x.shape, getattr(ml_dtypes, name))
        for call in (client.call, client.normalize_stream):
            with pytest.raises(normd.InvalidArgumentError) as error:
                call("rms_norm_4096_float8", x, out={"y": out})
            assert (error.value.field, error.value.came) == ("out.dtype", name)
            with pytest.raises(normd.InvalidArgumentError) as error:
                call("rms_norm_4096", out)
            assert (error.value.field, error.value.came) == ("dtype", name)
    out = np.zeros(x.shape, ml_dtypes.float8_e4m3fn)
    assert client.call("rms_norm_4096_float8", x, out={"y": out}).outputs["y"] is out
    assert out.any()


def test_large_inputs_go_as_streams(make_client, server):
    x = random((2, 64, 16))
    small = make_client(server.address, stream_above=x.nbytes)
    large = make_client(server.address, stream_above=x.nbytes - 1)
    expected = small.call("instance_norm_64", x)
    streamed = large.call("instance_norm_64", x)
    assert expected.batch is not None
    assert streamed.batch is None
    assert same_bits(streamed.output, expected.output)
    assert same_bits(large.normalize("instance_norm_64", x), expected.output)


def test_many_threads_share_a_client(server):
    from concurrent.futures import ThreadPoolExecutor

    with normd.Client(server.address) as client, ThreadPoolExecutor(8) as pool:
        xs = [random((1 + i % 3, 64, 5), seed=i) for i in range(64)]
        expected = [client.normalize("instance_norm_64", x) for x in xs]
        for y, want in zip(
            pool.map(lambda x: client.normalize("instance_norm_64", x), xs), expected, strict=True
        ):
            assert same_bits(y, want)


def test_priorities_queue_timeout_and_precision_are_sent(client):
    x = random((2, 512))
    for priority in normd.Priority:
        client.normalize("rms_norm_4096", random((1, 4096)), priority=priority, queue_timeout=30)
    inputs = {"x": x, "y": x}
    precise = client.normalize(
        "fused_linear_512", inputs, precision=normd.Precision.FLOAT32_STRICT, version=1
    )
    assert precise.shape == (2, 512)
    with pytest.raises(normd.InvalidArgumentError) as error:
        client.normalize("rms_norm_4096", random((1, 4096)), precision=normd.Precision.TF32)
    assert error.value.field == "precision"


def test_a_masked_array_without_a_masked_element_is_an_array(client):
    x = np.arange(256, dtype="f4").reshape(1, 64, 2, 2)
    y = client.normalize("instance_norm_64", np.ma.masked_greater(x, 256))
    assert type(y) is np.ndarray
    np.testing.assert_array_equal(y, client.normalize("instance_norm_64", x))


def test_inputs_without_dense_elements_are_refused(client):
    good = np.ones((1, 64, 2, 2), "f4")

    class Refusing:
        def __array__(self, *_):
            raise TypeError("on another device")

    bad = [
        (np.ma.masked_less(good, 2), "mask: has True"),
        (Refusing(), "type: Refusing, .*on another device"),
        (object(), "type: object"),
    ]
    torch = pytest.importorskip("torch")
    tensor = torch.ones(1, 64, 2, 2)
    bad += [
        (tensor.to("meta"), "device: meta"),
        (tensor.to_sparse(), "layout: torch.sparse_coo"),
        (tensor[0, 0].to_sparse_csr(), "layout: torch.sparse_csr"),
        (torch.nested.nested_tensor([tensor, tensor]), "layout: nested"),
        (torch.nested.nested_tensor([tensor[0], tensor[0]], layout=torch.jagged), "layout: nested"),
        (torch.quantize_per_tensor(tensor, 1.0, 0, torch.quint8), "dtype: torch.quint8"),
        (tensor.bool(), "dtype: torch.bool"),
    ]
    for x, words in bad:
        for call in (client.normalize, client.call, client.normalize_stream):
            with pytest.raises(normd.InvalidArgumentError, match=words):
                call("instance_norm_64", x)
            with pytest.raises(normd.InvalidArgumentError, match=f'input "x": {words}'):
                call("instance_norm_64", {"x": x})
    from torch._subclasses.fake_tensor import FakeTensorMode

    fake = FakeTensorMode().from_tensor(tensor)
    for call in (client.normalize, client.normalize_stream):
        with pytest.raises(normd.InvalidArgumentError, match="storage: none"):
            torch.vmap(lambda x, call=call: call("instance_norm_64", x))(tensor)
        with pytest.raises(normd.InvalidArgumentError, match="storage: none"):
            call("instance_norm_64", fake)
        with pytest.raises(normd.InvalidArgumentError, match=r"^out\.is_neg"):
            call("instance_norm_64", good, out=tensor._neg_view())
    for out in (tensor.to("meta"), tensor.to_sparse(), fake, np.ma.masked_less(good, 2)):
        for call in (client.normalize, client.normalize_stream):
            with pytest.raises(normd.InvalidArgumentError, match=r"^out"):
                call("instance_norm_64", good, out=out)


def test_negated_views_of_pytorch_have_their_values(client):
    torch = pytest.importorskip("torch")
    x = torch.randn(1, 64, 2, 2, dtype=torch.complex64).conj().imag
    assert x.is_neg()
    assert torch.equal(
        client.normalize("instance_norm_64", x), client.normalize("instance_norm_64", x.clone())
    )
