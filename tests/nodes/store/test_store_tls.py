"""Servers behind TLS, with an authority of one's own and passwords: what is set arrives, and what is wrong is told."""

from __future__ import annotations

import pickle
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from topology.agents.scaleout.ppo import ScaleOutPPOConfig
from topology.agents.scaleout.stores import open_memory, open_policies
from topology.clock import SYSTEM_CLOCK, Deadline
from topology.context import NodeContext
from topology.errors import StoreClosed, StoreDenied, StoreUnavailable
from topology.nodes.store.memory import open_memory_backend
from topology.nodes.store.policies import open_data_store

redis = pytest.importorskip("redis", reason="redis-py is not installed")

DEADLINE_S = 30.0
WEIGHTS = {"w": np.arange(300_000.0)}
FRAMES = {"observation": np.random.default_rng(0).integers(0, 256, (100, 84, 84), np.uint8)}


class TlsServer:
    """A Redis server with a password that speaks TLS alone."""

    def __init__(self, make_redis, certificates, port, *options):
        command = ["--tls-port", str(port), "--tls-cert-file", certificates.certificate]
        command += ["--tls-key-file", certificates.key, "--tls-ca-cert-file", certificates.authority]
        command += ["--requirepass", "sesame", "--appendonly", "yes", *options]
        try:
            self.server = make_redis(*map(str, command))
        except AssertionError:
            pytest.skip("this redis-server does not know TLS: it was built without it")
        self.plain = f"rediss://:sesame@127.0.0.1:{port}/0"
        self.url = f"{self.plain}?ssl_ca_certs={certificates.authority}"


@pytest.fixture
def make_tls(make_redis, certificates, free_ports):
    return lambda *options: TlsServer(make_redis, certificates, free_ports(), *options)


@pytest.fixture
def tls(make_tls):
    return make_tls("--tls-auth-clients", "no")


def test_experience_and_policies_travel_over_tls(tls):
    with open_memory_backend(tls.url, name="memory", max_bytes=1 << 28) as memory, open_data_store(tls.url) as store:
        again, store_again = pickle.loads(pickle.dumps((memory, store)))
        with again, store_again, again.writer(max_in_flight=3) as writer, ThreadPoolExecutor(2) as pool:
            waiting = pool.submit(memory.fetch, num_steps=500, timeout_s=DEADLINE_S)
            for number in range(5):
                writer.store(FRAMES, {"number": number})
            got = waiting.result(DEADLINE_S)
            assert [experience.meta["number"] for experience in got] == list(range(5))
            for experience in got:
                np.testing.assert_array_equal(experience.columns["observation"], FRAMES["observation"])
            memory.acknowledge(got)
            waiting = pool.submit(store_again.wait_newer, -1, timeout_s=DEADLINE_S)
            assert store.save(WEIGHTS, lease=store.lease("trainer", 60.0)) == 0
            np.testing.assert_array_equal(waiting.result(DEADLINE_S).arrays["w"], WEIGHTS["w"])
        assert "sesame" not in repr(memory) + repr(store)


def test_a_server_behind_tls_that_is_killed_costs_only_time(tls):
    with open_memory_backend(tls.url, name="memory", patience_s=DEADLINE_S) as memory:
        with memory.writer() as writer, ThreadPoolExecutor(1) as pool:
            writer.store({"x": np.arange(1)})
            writer.flush(DEADLINE_S)
            tls.server.kill()
            stored = pool.submit(lambda: (writer.store({"x": np.arange(1, 2)}), writer.flush(DEADLINE_S)))
            tls.server.start()
            stored.result(DEADLINE_S)
        got = memory.fetch(num_steps=2, timeout_s=DEADLINE_S)
        assert [int(experience.columns["x"][0]) for experience in got] == [0, 1]


def test_who_waits_behind_tls_is_woken_by_close(tls):
    with open_memory_backend(tls.url, name="memory") as memory, ThreadPoolExecutor(1) as pool:
        memory.fetch_available()
        waiting = pool.submit(memory.fetch, num_steps=1, timeout_s=DEADLINE_S)
        memory.close()
        with pytest.raises(StoreClosed):
            waiting.result(DEADLINE_S)


def test_a_certificate_of_nobody_known_is_told_and_not_waited_for(tls):
    for opened in (
        lambda: open_memory_backend(tls.plain, name="memory", patience_s=1e6),
        lambda: open_data_store(tls.plain, patience_s=1e6),
    ):
        with pytest.raises(StoreDenied, match=r"certificate verify failed.*\?ssl_ca_certs=FILE"):
            opened()


@pytest.fixture
def talker():
    """The port of a server that answers whatever it hears, and not in TLS. (Redis itself would wait for more.)"""
    with socket.create_server(("127.0.0.1", 0)) as server, ThreadPoolExecutor(1) as pool:

        def answer():
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:
                    return
                with connection:
                    connection.recv(1000)
                    connection.sendall(b"-ERR I do not understand\r\n")

        pool.submit(answer)
        yield server.getsockname()[1]
        server.shutdown(socket.SHUT_RDWR)


def test_a_server_that_does_not_speak_tls_is_told_and_not_waited_for(talker):
    url = f"rediss://127.0.0.1:{talker}/0"
    for opened in (
        lambda: open_memory_backend(url, name="memory", patience_s=1e6),
        lambda: open_data_store(url, patience_s=1e6),
    ):
        with pytest.raises(StoreDenied, match="use redis:// where it does not speak TLS"):
            opened()


def test_a_wrong_password_behind_tls(tls):
    for opened in (
        lambda url: open_memory_backend(url, name="memory", patience_s=1e6),
        lambda url: open_data_store(url, patience_s=1e6),
    ):
        with pytest.raises(StoreDenied, match=r"password|let us in"):
            opened(tls.url.replace("sesame", "guess"))


def test_a_server_that_wants_to_see_a_certificate(make_tls, certificates):
    server = make_tls("--tls-auth-clients", "yes")
    with pytest.raises(StoreUnavailable):
        open_memory_backend(server.url, name="memory", patience_s=0)
    ours = f"{server.url}&ssl_certfile={certificates.certificate}&ssl_keyfile={certificates.key}"
    with open_memory_backend(ours, name="memory") as memory, open_data_store(ours, name="run") as store:
        memory.store({"x": np.arange(3)})
        assert memory.fetch(num_steps=3, timeout_s=DEADLINE_S)[0].steps == 3
        assert store.save(WEIGHTS) == 0


@pytest.mark.parametrize("name", ["ssl_ca_certs", "ssl_certfile", "ssl_keyfile"])
def test_a_file_that_is_not_there_is_named(name, tmp_path):
    url = f"rediss://127.0.0.1:1/0?{name}={tmp_path}/none.pem"
    for opened in (lambda: open_memory_backend(url, name="memory", patience_s=1e6), lambda: open_data_store(url)):
        with pytest.raises(ValueError, match=rf"{name}=.*none\.pem"):
            opened()


def test_the_settings_of_a_run_reach_the_server(tls, tmp_path, monkeypatch):
    monkeypatch.setenv("REDIS_URL", tls.url)
    config = ScaleOutPPOConfig(memory_backend="redis", data_store="redis")
    context = NodeContext(label="trainer", index=0, launch_type="test_mp", run_directory=str(tmp_path / "run"))
    with open_memory(config, context, None) as memory, open_policies(config, context) as store:
        memory.store({"x": np.arange(3)})
        assert store.save(WEIGHTS) == 0


# --- S3 ---------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def https(certificates, free_ports):
    """The address of an S3 server that speaks TLS; its bucket is "bucket"."""
    for package in ("moto.server", "s3fs"):
        pytest.importorskip(package, reason=f"{package} is not installed: pip install 'moto[s3,server]' s3fs")
    import fsspec.asyn

    fsspec.asyn.get_loop()  # its thread stays for as long as the process
    port = free_ports()
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    command += ["-c", str(certificates.certificate), "-k", str(certificates.key)]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    options = {"endpoint_url": f"https://127.0.0.1:{port}", "key": "key", "secret": "secret"}
    try:
        make_bucket(options, certificates.authority)
        yield options
    finally:
        server.kill()
        server.wait(DEADLINE_S)


def make_bucket(options, authority):
    import s3fs

    deadline = Deadline(DEADLINE_S)
    while True:
        verify = {"verify": str(authority)}
        fs = s3fs.S3FileSystem(**options, client_kwargs=verify, skip_instance_cache=True)
        try:
            fs.mkdir("bucket")
            return
        except OSError:  # it is not there yet
            assert not deadline.expired
            SYSTEM_CLOCK.sleep(0.05)
        finally:
            fs.close_session(fs.loop, fs._s3creator)


def test_policies_travel_to_s3_over_tls_with_an_authority_of_ones_own(https, certificates, monkeypatch):
    monkeypatch.setenv("AWS_CA_BUNDLE", str(certificates.authority))
    with open_data_store("s3://bucket/run", **https) as store:
        assert store.save(WEIGHTS) == 0
        with pickle.loads(pickle.dumps(store)) as again:
            np.testing.assert_array_equal(again.load().arrays["w"], WEIGHTS["w"])


def test_the_authority_of_s3_may_be_an_option(https, certificates):
    options = {**https, "client_kwargs": {"verify": str(certificates.authority)}}
    with open_data_store("s3://bucket/option", **options) as store:
        assert store.save(WEIGHTS) == 0


def test_an_authority_of_s3_that_nobody_knows_is_told_and_not_waited_for(https):
    with pytest.raises(StoreDenied, match=r"certificate verify failed.*AWS_CA_BUNDLE=FILE"):
        open_data_store("s3://bucket/run", patience_s=1e6, **https)


def test_an_s3_server_that_does_not_speak_tls_is_told_and_not_waited_for(s3_server):
    options = {**s3_server.options, "endpoint_url": s3_server.endpoint.replace("http:", "https:")}
    with pytest.raises(StoreDenied, match="use http:// where it does not speak TLS"):
        open_data_store("s3://bucket/run", patience_s=1e6, **options)
