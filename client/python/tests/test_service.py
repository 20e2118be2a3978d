"""Models, health, server information, several addresses, TLS and tokens."""

from __future__ import annotations

import asyncio
import inspect
import shutil
from concurrent import futures

import grpc
import numpy as np
import pytest
from conftest import REPOSITORY

import normd

X = np.ones((1, 64, 4), "f4")


def test_models(client):
    models = client.list_models()
    assert [each.name for each in models] == sorted(
        p.name for p in REPOSITORY.iterdir() if p.is_dir()
    )
    assert all(each.ready and each.version == 1 for each in models)
    model = client.get_model("group_norm_64_8")
    assert model.operation == "group_norm"
    assert [(each.name, each.shape) for each in model.inputs] == [("x", (-1, 64, -2))]
    assert [(each.name, each.on_request) for each in model.outputs] == [
        ("y", False),
        ("mean", True),
        ("rstd", True),
    ]
    assert model.config["group_norm"] == {"channels": 64, "groups": 8}
    assert [(each.name, each.dtype, each.shape) for each in model.parameters] == [
        ("weight", "float32", (64,)),
        ("bias", "float32", (64,)),
    ]
    assert client.get_model("layer_norm_1024").config["layer_norm"]["normalized_shape"] == [1024]
    assert client.get_model("group_norm_320_32_silu_last").config["layout"] == "CHANNELS_LAST"
    with pytest.raises(normd.NotFoundError):
        client.get_model("nope")


def test_load_and_unload(make_client, own_server):
    client = make_client(own_server.address)
    assert client.load_model("rms_norm_4096").ready
    assert client.unload_model("rms_norm_4096") == [1]
    with pytest.raises(normd.NotFoundError):
        client.health("rms_norm_4096")
    with pytest.raises(normd.DeadlineExceededError):
        client.wait_ready("rms_norm_4096", timeout=0.2)
    client.load_model("rms_norm_4096", version=1)
    client.wait_ready("rms_norm_4096")
    with pytest.raises(normd.NotFoundError):
        client.load_model("nope")


def test_server_info(client):
    info = client.server_info()
    assert info.version
    assert info.ready
    assert info.lanes
    assert info.max_request_bytes > 1 << 20


def test_health(client):
    assert client.health() is normd.HealthStatus.SERVING
    assert client.health("rms_norm_4096") is normd.HealthStatus.SERVING
    with pytest.raises(normd.NotFoundError):
        client.health("nope")


def test_watch_health(own_server):
    with normd.Client(own_server.address) as client:
        watch = client.watch_health("rms_norm_4096")
        assert next(watch) is normd.HealthStatus.SERVING
        client.unload_model("rms_norm_4096")
        assert next(watch) is normd.HealthStatus.SERVICE_UNKNOWN
        watch.close()
        assert next(client.watch_health("nope")) is normd.HealthStatus.SERVICE_UNKNOWN


def test_both_clients_have_the_same_calls_arguments_and_docstrings():
    for name, call in inspect.getmembers(normd.aio.Client, inspect.isroutine):
        if not name.startswith("_") and name != "close":
            blocking = getattr(normd.Client, name)
            assert inspect.signature(blocking) == inspect.signature(call)
            assert blocking.__doc__ == call.__doc__
            assert not inspect.iscoroutinefunction(blocking)
            assert not inspect.isasyncgenfunction(blocking)


def test_the_synchronous_client_takes_calls_in_a_running_event_loop(server):
    async def call() -> None:
        with normd.Client(server.address) as client:
            client.wait_ready()
            watch = client.watch_health()
            assert next(watch) is normd.HealthStatus.SERVING
            watch.close()
            assert client.normalize("instance_norm_64", X).shape == X.shape

    asyncio.run(call())


def test_several_addresses_are_used_in_turn(make_client, server, own_server):
    client = make_client([server.address, own_server.address.replace("127.0.0.1", "localhost")])
    uptimes = {client.server_info().uptime_ns // 10**7 for _ in range(20)}
    assert len(uptimes) > 1
    own_server.kill()
    for _ in range(10):
        client.normalize("instance_norm_64", X)


def test_repr_names_the_server_and_says_whether_it_is_closed(server):
    client = normd.Client(server.address)
    assert repr(client) == f"<normd.Client of {server.address}>"
    client.close()
    assert repr(client) == f"<normd.Client of {server.address}, closed>"


def certificate(folder):
    """A key and a certificate for "normd.test"."""
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("openssl is not installed")
    import subprocess

    subprocess.run(
        [openssl, "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", folder / "key.pem",
         "-out", folder / "cert.pem", "-days", "2", "-subj", "/CN=normd.test",
         "-addext", "subjectAltName=DNS:normd.test"],
        check=True, capture_output=True,
    )  # fmt: skip
    return (folder / "key.pem").read_bytes(), (folder / "cert.pem").read_bytes()


def test_tls_and_token(make_client, tmp_path):
    key, cert = certificate(tmp_path)
    seen = []

    def models(request, context):
        seen.append(dict(context.invocation_metadata()).get("authorization"))
        return b""

    server = grpc.server(futures.ThreadPoolExecutor(2))
    server.add_generic_rpc_handlers(
        (
            grpc.method_handlers_generic_handler(
                "normd.v1.NormService",
                {"ListModels": grpc.unary_unary_rpc_method_handler(models)},
            ),
        )
    )
    port = server.add_secure_port("127.0.0.1:0", grpc.ssl_server_credentials([(key, cert)]))
    server.start()
    try:
        credentials = grpc.ssl_channel_credentials(cert)
        options = {"credentials": credentials, "server_name": "normd.test"}
        assert make_client(f"127.0.0.1:{port}", **options).list_models() == []
        assert make_client(f"127.0.0.1:{port}", token="secret", **options).list_models() == []
        assert make_client([f"127.0.0.1:{port}"], token="secret", **options).list_models() == []
        assert seen == [None, "Bearer secret", "Bearer secret"]
        with pytest.raises(normd.UnauthenticatedError, match="a server that they trust"):
            make_client(f"127.0.0.1:{port}", credentials=credentials).list_models()
    finally:
        server.stop(None)
