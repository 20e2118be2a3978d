"""Versions of a model that must not be served."""

import pathlib
import shutil
import tempfile
import time

from cases import require, require_nothing_lost, scenario


@scenario("a poisoned model version: it is refused and changes nothing")
def poisoned(setup):
    with tempfile.TemporaryDirectory() as folder:
        repository = pathlib.Path(folder, "models")
        shutil.copytree(setup.repository, repository)
        with setup.fleet(repository=repository) as fleet:
            load = fleet.load(*setup.beside(5))
            version = repository / "instance_norm_64/2"
            good = (repository / "instance_norm_64/1/params.safetensors").read_bytes()
            refused = 0
            for bad in (b"", b"\xff" * 64, good[:-100], good + b"x", good.replace(b"F32", b"F64")):
                version.mkdir(exist_ok=True)
                (version / "params.safetensors").write_bytes(bad)
                for replica in fleet.replicas:
                    told = replica.normctl("load", "instance_norm_64", "--version=2")
                    require(told.returncode != 0, "a broken version was loaded:", bad[:16])
                    refused += 1
            result = load.result()
    require(refused == 15, "only", refused, "loads were refused")
    require_nothing_lost(result)
    return [result]


def poisons(good):
    """What a version may hold that must not be served, by the version."""
    header = 8 + int.from_bytes(good[:8], "little")
    nan = good[:header] + b"\x00\x00\xc0\x7f" * ((len(good) - header) // 4)
    return dict(enumerate((b"", good[:-100], nan, good.replace(b"[64]", b"[63]")), start=2))


def await_version(replica, version, limit_s=60):
    """Until the replica serves the version, and no other."""
    end = time.monotonic() + limit_s
    while True:
        told = replica.normctl("model", "instance_norm_64", f"--version={version}")
        gone = replica.normctl("model", "instance_norm_64", "--version=1")
        if told.returncode == 0 and "FAILED" not in told.stdout and gone.returncode != 0:
            return
        require(time.monotonic() < end, replica.target, "does not serve version", version,
                replica.log())
        time.sleep(0.1)


@scenario("a poisoned version in the repository that replicas follow: the old one serves, then a good one")
def poisoned_model(setup):
    with tempfile.TemporaryDirectory() as folder:
        repository = pathlib.Path(folder, "models")
        shutil.copytree(setup.repository, repository)
        model = repository / "instance_norm_64"
        good = (model / "1/params.safetensors").read_bytes()
        with setup.fleet(repository=repository, flags=("--model_poll_interval=250ms",)) as fleet:
            load = fleet.load(*setup.beside(14))
            time.sleep(2)  # The warm-up.
            for version, bad in poisons(good).items():
                (model / f"{version}.tmp").mkdir()
                (model / f"{version}.tmp/params.safetensors").write_bytes(bad)
                (model / f"{version}.tmp").rename(model / str(version))
                for replica in fleet.replicas:
                    replica.await_log(f"instance_norm_64, version {version}: load failed")
            config = (model / "config.textproto").read_text()
            (model / "config.textproto").write_text("instance_norm { channels: 64")
            for replica in fleet.replicas:
                replica.await_log("instance_norm_64, version 1: load failed, the state before")
            require(load.running(), "the load ended before the good version came")
            (model / "config.textproto").write_text(config)
            last = max(poisons(good)) + 1
            (model / f"{last}.tmp").mkdir()
            (model / f"{last}.tmp/params.safetensors").write_bytes(good)
            (model / f"{last}.tmp").rename(model / str(last))
            for replica in fleet.replicas:
                await_version(replica, last)
            result = load.result()
            for replica in fleet.replicas:
                counts = replica.responses_by_version()
                require(set(counts) <= {"1", str(last)} and counts[str(last)] > 0,
                        "versions that answered:", counts)
                # Each version once, and with each change of the config once more.
                require(replica.log().count("load failed") <= 3 * (len(poisons(good)) + 1),
                        "a failure was told again and again:", replica.log())
    require_nothing_lost(result)
    return [result]
