"""Redis servers for the tests: one for all, and some that may be killed; and an object store that speaks S3."""

from __future__ import annotations

import datetime
import importlib.util
import ipaddress
import shutil
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

import pytest

REDIS = shutil.which("redis-server")
NEEDS_REDIS = "redis-server is not installed (Debian: apt-get install redis-server), or redis-py is not"


class RedisServer:
    """A server of its own folder, at a Unix socket; `kill` and `start` it as often as you like."""

    def __init__(self, *options, tcp=False):
        self.folder = Path(tempfile.mkdtemp(prefix="redis-"))  # short: the path of a socket has at most 107 characters
        self.options = options
        self.port = free_port() if tcp else 0
        self.process = None
        self.start()

    @property
    def url(self):
        return f"redis://127.0.0.1:{self.port}/0" if self.port else f"unix://{self.folder}/socket?db=0"

    def start(self):
        command = [REDIS, "--port", str(self.port), "--dir", str(self.folder), "--save", ""]
        command += ["--unixsocket", str(self.folder / "socket"), "--daemonize", "no", *self.options]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        for line in self.process.stdout:
            if "ready to accept connections" in line.lower():
                return
        self.process.stdout.close()
        raise AssertionError(f"redis-server ended with code {self.process.wait(10)}")

    def kill(self):
        self.process.kill()
        self.process.wait(10)
        self.process.stdout.close()

    def close(self):
        if self.process.returncode is None:
            self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)


def free_port():
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return sock.getsockname()[1]


def redis_is_there():
    return REDIS is not None and importlib.util.find_spec("redis") is not None


@pytest.fixture(scope="session")
def free_ports():
    """Makes numbers of ports at which nobody listens."""
    return free_port


@pytest.fixture(scope="session", autouse=True)
def shared_redis():
    """Begun before the first test, so that it is not taken for something that a test leaves behind."""
    server = RedisServer() if redis_is_there() else None
    yield server
    if server is not None:
        server.close()


@pytest.fixture
def redis_server(shared_redis):
    """One that all tests share: use names of your own, and do not kill it."""
    if shared_redis is None:
        pytest.skip(NEEDS_REDIS)
    return shared_redis


@pytest.fixture
def make_redis():
    """Makes servers with options of `redis-server`; `tcp=True` for one with a port."""
    if not redis_is_there():
        pytest.skip(NEEDS_REDIS)
    servers = []

    def make(*options, tcp=False):
        servers.append(RedisServer(*options, tcp=tcp))
        return servers[-1]

    yield make
    for server in servers:
        server.close()


MOTO = """
import sys
from moto.server import ThreadedMotoServer
server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
server.start()
print("ready", *server.get_host_and_port(), flush=True)
sys.stdin.read()
"""


class Certificates(NamedTuple):
    """Files in PEM: of an authority, and of one that it says is 127.0.0.1."""

    authority: Path
    certificate: Path
    key: Path


@pytest.fixture(scope="session")
def certificates(tmp_path_factory):
    """Made for this session, by an authority that nobody knows."""
    pytest.importorskip("cryptography", reason="the package cryptography, which makes certificates, is not installed")
    folder = tmp_path_factory.mktemp("certificates")
    made = Certificates(folder / "authority.pem", folder / "server.pem", folder / "server.key")
    make_certificates(made)
    return made


def make_certificates(files):
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    keys = {name: ec.generate_private_key(ec.SECP256R1()) for name in ("authority", "server")}
    began = datetime.datetime.now(datetime.UTC) - datetime.timedelta(days=1)

    def begin(subject):
        name = {each: x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, each)]) for each in keys}
        builder = x509.CertificateBuilder().subject_name(name[subject]).issuer_name(name["authority"])
        builder = builder.serial_number(x509.random_serial_number()).public_key(keys[subject].public_key())
        builder = builder.not_valid_before(began).not_valid_after(began + datetime.timedelta(days=3))
        issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(keys["authority"].public_key())
        return builder.add_extension(issuer, critical=False)

    signs = dict.fromkeys(
        ("digital_signature", "content_commitment", "key_encipherment", "data_encipherment", "key_agreement"), False
    )
    signs |= {"key_cert_sign": True, "crl_sign": True, "encipher_only": False, "decipher_only": False}
    authority = begin("authority").add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
    authority = authority.add_extension(x509.KeyUsage(**signs), critical=True)
    mine = x509.SubjectKeyIdentifier.from_public_key(keys["authority"].public_key())
    authority = authority.add_extension(mine, critical=False)
    here = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
    server = begin("server").add_extension(here, critical=False)
    for file, builder in ((files.authority, authority), (files.certificate, server)):
        signed = builder.sign(keys["authority"], hashes.SHA256())
        file.write_bytes(signed.public_bytes(serialization.Encoding.PEM))
    plain = serialization.NoEncryption()
    form = serialization.PrivateFormat.PKCS8
    files.key.write_bytes(keys["server"].private_bytes(serialization.Encoding.PEM, form, plain))


class S3Server:
    """moto's server in a process of its own, which ends with this one."""

    def __init__(self):
        for package in ("moto", "flask", "s3fs"):
            if importlib.util.find_spec(package) is None:
                pytest.skip(f"the package {package} is not installed: pip install 'moto[s3,server]' s3fs")
        import fsspec.asyn

        fsspec.asyn.get_loop()  # its thread stays for as long as the process
        self.process = subprocess.Popen(
            [sys.executable, "-c", MOTO],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,  # a line for every request
            text=True,
        )
        said = self.process.stdout.readline().split()
        assert said[:1] == ["ready"], f"moto's server ended with code {self.process.wait(10)}"
        self.endpoint = f"http://{said[1]}:{said[2]}"
        self.make_bucket("the-first-one")  # the first request starts a thread of asyncio that stays

    @property
    def options(self):
        return {"endpoint_url": self.endpoint, "key": "key", "secret": "secret"}

    def make_bucket(self, name):
        import s3fs

        fs = s3fs.S3FileSystem(**self.options, skip_instance_cache=True)
        fs.mkdir(name)
        fs.close_session(fs.loop, fs._s3creator)

    def close(self):
        self.process.kill()
        self.process.wait(10)
        self.process.stdin.close()
        self.process.stdout.close()


@pytest.fixture(scope="session")
def s3_server():
    """One that all tests share: ask for it by fixtures of the module's scope, and make buckets of your own."""
    server = S3Server()
    yield server
    server.close()
