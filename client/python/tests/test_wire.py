"""The hand-written encoding agrees with protobuf's, and survives anything."""

from __future__ import annotations

import random

import numpy as np
import pytest

import normd
from normd import _protocol, _request, _response, _wire
from normd._dtypes import DATA_TYPES

NormalizeRequest = _protocol.message("normd.v1.NormalizeRequest")
NormalizeResponse = _protocol.message("normd.v1.NormalizeResponse")

NUMBERS = [0, 1, 127, 128, 300, 2**31, 2**32 - 1, 2**62, 2**63 - 1]


@pytest.mark.parametrize("value", [*NUMBERS, -1, -(2**63)])
def test_varints_are_read_back(value):
    encoded = _wire.varint(value)
    assert _wire.packed(encoded * 3, 0, 3 * len(encoded)) == [value] * 3


def test_requests_are_protobufs():
    generator = random.Random(1)
    for _ in range(300):
        inputs = [
            _request.to_input(
                generator.choice(["", "x", "ä" * 70]),
                np.ones(
                    [generator.choice([0, 1, 3, 200]) for _ in range(generator.randrange(4))], dtype
                ),
            )
            for dtype in generator.choices(["f4", "f8", "f2", "V2"], k=generator.randrange(4))
        ]
        queue_timeout = generator.choice([None, 1e-9, 0.5, 1e30, 1e300])
        options = _request.options_of(
            generator.choice(NUMBERS),
            generator.choice([None, *normd.Priority]),
            queue_timeout,
            generator.choice([None, *normd.Precision]),
        )
        message = NormalizeRequest.FromString(b"".join(_request.encode("m", options, inputs)))
        assert message.model == "m"
        assert message.version == options.version
        assert message.priority == (options.priority or 0)
        assert message.precision == (options.precision or 0)
        assert (message.queue_timeout_ns > 0) == (queue_timeout is not None)
        for tensor, given in zip(message.inputs, inputs, strict=True):
            assert tensor.name == given.spec.name
            assert tensor.dtype == given.spec.dtype.number
            assert tuple(tensor.shape) == given.spec.shape
            assert tensor.data == bytes(given.data)


def some_response(generator):
    message = NormalizeResponse(
        model="m" * generator.randrange(300), version=generator.choice(NUMBERS)
    )
    for i in range(generator.randrange(1, 4)):
        dtype = generator.choice(DATA_TYPES)
        shape = [generator.choice([0, 1, 2, 130]) for _ in range(generator.randrange(3))]
        size = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
        message.outputs.add(
            name=str(i), dtype=dtype.number, shape=shape, data=generator.randbytes(size)
        )
    if generator.random() < 0.7:
        message.stages.decode_ns = generator.choice(NUMBERS)
        message.stages.copy_out_ns = generator.choice(NUMBERS)
        message.batch.id = generator.choice(NUMBERS)
        message.batch.lane = "cpu:0"
    return message


def test_responses_are_read_as_protobuf_reads_them():
    generator = random.Random(2)
    unknown = b"\x9a\x3e\x03abc\xa1\x3e12345678\xad\x3e1234\xb0\x3e\x96\x01"
    for _ in range(300):
        message = some_response(generator)
        received = _response.decode(message.SerializeToString() + generator.choice([b"", unknown]))
        response = received.response([_request.to_input("", np.ones(1, "f4"))], None)
        assert (response.model, response.version) == (message.model, message.version)
        assert response.stages.decode_ns == message.stages.decode_ns
        assert response.stages.copy_out_ns == message.stages.copy_out_ns
        assert (response.batch.id, response.batch.lane) == (message.batch.id, message.batch.lane)
        for tensor in message.outputs:
            output = response.outputs[tensor.name]
            assert output.shape == tuple(tensor.shape)
            assert output.tobytes() == tensor.data


def test_unpacked_shapes_are_read():
    received = _response.decode(b"\x2a\x10\x18\x01\x10\x01\x18\x02\x22\x08" + bytes(8))
    assert received.tensors[0][0].shape == (1, 2)


def test_cut_or_changed_responses_are_refused_or_read_and_nothing_else():
    generator = random.Random(3)
    read = refused = 0
    for _ in range(4000):
        data = bytearray(some_response(generator).SerializeToString()[:400])
        for _ in range(generator.randrange(4)):
            if data:
                data[generator.randrange(len(data))] = generator.randrange(256)
        try:
            received = _response.decode(bytes(data))
            received.response([_request.to_input("", np.ones(1, "f4"))], None)
            read += 1
        except normd.ProtocolError:
            refused += 1
    assert read > 100
    assert refused > 100


def test_messages_over_2_gib_are_refused():
    never_touched = np.empty(((1 << 31) // 4, 1), "f4")
    inputs = [_request.to_input("", never_touched)]
    with pytest.raises(normd.InvalidArgumentError, match="normalize_stream"):
        _request.encode("m", _request.Options(), inputs)
