"""As people run them: `topology launch`, processes, Redis and an S3 server really running; and killed half-way.

What is reached: CartPole-v1 at 450 of 500, with the defaults of PPO (SYNC) and DQN (ASYNC). These tests take minutes.
"""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from topology.clock import SYSTEM_CLOCK, Deadline

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[3]
READY_S = 30.0
RUN_S = 900.0
AGENTS = {"ppo": ["--synchronization", "sync"], "scaleout-dqn": ["--synchronization", "async"]}


def free_port():
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return sock.getsockname()[1]


def until(seconds, what, predicate):
    deadline = Deadline(seconds)
    while not (result := predicate()):
        assert not deadline.expired, f"{what} did not come within {seconds:g} s"
        SYSTEM_CLOCK.sleep(0.05)  # of processes that tell nobody
    return result


def answers(port):
    with socket.socket() as sock:
        return sock.connect_ex(("127.0.0.1", port)) == 0


class Redis:
    """A server with a password, which keeps what it has when it is killed."""

    def __init__(self):
        self.port, self.folder = free_port(), tempfile.mkdtemp(prefix="redis-")
        self.url = f"redis://:sesame@127.0.0.1:{self.port}/0"
        self.start()

    def start(self):
        command = ["redis-server", "--port", str(self.port), "--bind", "127.0.0.1", "--requirepass", "sesame"]
        command += ["--save", "", "--appendonly", "yes", "--dir", self.folder]
        self.server = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        until(READY_S, "Redis", lambda: answers(self.port))

    def kill(self):
        self.server.kill()
        self.server.wait(READY_S)


@pytest.fixture
def redis_server():
    pytest.importorskip("redis", reason="redis-py is not installed")
    if shutil.which("redis-server") is None:
        pytest.skip("redis-server is not installed (Debian: apt-get install redis-server)")
    redis = Redis()
    yield redis
    redis.kill()
    shutil.rmtree(redis.folder)


@pytest.fixture
def s3(monkeypatch):
    """The address of a data store in a server, and the server; credentials are in the environment."""
    pytest.importorskip("moto.server", reason="moto[server] is not installed")
    s3fs = pytest.importorskip("s3fs", reason="s3fs is not installed")
    port = free_port()
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    until(READY_S, "the S3 server", lambda: answers(port))
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{port}")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "somebody")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "sesame")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    make = "import s3fs; s3fs.S3FileSystem().mkdir('policies')"  # in a process of its own: s3fs leaves a thread
    subprocess.run([sys.executable, "-c", make], check=True, timeout=READY_S)
    del s3fs
    yield "s3://policies/run", server
    server.kill()
    server.wait(READY_S)


class Run:
    """`topology launch` in a process of its own."""

    def __init__(self, directory, agent, *options):
        self.directory = directory
        self.output = (directory.parent / "output.txt").open("w+")
        command = [sys.executable, "-m", "launch.cli", "launch", agent, *options, "--no-live"]
        self.process = subprocess.Popen(
            [*command, "--run-directory", str(directory)],
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdout=self.output,
            stderr=subprocess.STDOUT,
        )

    def rows(self, node):
        path = self.directory / "metrics" / f"{node}.jsonl"
        lines = path.read_text().splitlines(keepends=True) if path.exists() else []
        return [json.loads(line) for line in lines if line.endswith("\n")]

    def progress(self):
        assert self.process.poll() is None, f"it ended: {self.said()}"
        rows = self.rows("trainer-0")
        return rows[-1]["progress"] if rows else 0.0

    def node(self, label, index=0):
        nodes = json.loads((self.directory / "run.json").read_text())["nodes"]
        return next(node for node in nodes if (node["label"], node["index"]) == (label, index))

    def kill(self, label, index=0):
        os.kill(self.node(label, index)["pid"], signal.SIGKILL)

    def command_lines(self):
        """Of every process of the run, as all users of the machine can read them."""
        state = json.loads((self.directory / "run.json").read_text())
        pids = [self.process.pid, *(node["pid"] for node in state["nodes"])]
        return [Path(f"/proc/{pid}/cmdline").read_text() for pid in pids]

    def said(self):
        return Path(self.output.name).read_text()

    def finish(self):
        try:
            assert self.process.wait(RUN_S) == 0, self.said()
        finally:
            if self.process.poll() is None:
                self.process.send_signal(signal.SIGINT)
                self.process.wait(READY_S)
            self.output.close()

    def final_return(self):
        final = [row for row in self.rows("evaluator-0") if row["evaluator_final"]]
        assert len(final) == 1
        return final[0]["evaluator_return"]


@pytest.mark.timeout(RUN_S + 60)
@pytest.mark.parametrize("agent", AGENTS)
@pytest.mark.parametrize("killed", [False, True], ids=["undisturbed", "killed half-way"])
def test_cartpole_is_learned_over_redis_and_s3(tmp_path, monkeypatch, redis_server, s3, agent, killed):
    monkeypatch.setenv("REDIS_URL", redis_server.url)
    run = Run(tmp_path / "run", agent, *AGENTS[agent], "--memory-backend", "redis", "--data-store", s3[0])
    try:
        until(RUN_S, "a beginning", lambda: run.progress() > 0.0)
        assert not any("sesame" in line for line in run.command_lines())
        if killed:
            until(RUN_S, "half of the steps", lambda: run.progress() >= 0.4)
            run.kill("worker", 1)
            run.kill("trainer")
    finally:
        run.finish()
    assert run.final_return() >= 450.0, run.said()
    restarts = [run.node(*node)["restarts"] for node in (("trainer", 0), ("worker", 1), ("worker", 0))]
    assert restarts == ([1, 1, 0] if killed else [0, 0, 0])
    policies = [row["policy"] for row in run.rows("trainer-0")]
    assert policies == sorted(policies)


@pytest.mark.timeout(RUN_S + 60)
@pytest.mark.parametrize("agent", AGENTS)
def test_servers_that_go_away_cost_nothing_but_time(tmp_path, monkeypatch, redis_server, s3, agent):
    monkeypatch.setenv("REDIS_URL", redis_server.url)
    more = ["--memory-backend", "redis", "--data-store", s3[0], "--max-steps", "30000"]
    run = Run(tmp_path / "run", agent, *AGENTS[agent], *more)
    try:
        for part in (0.2, 0.5):
            until(RUN_S, "so many steps", lambda part=part: run.progress() >= part)
            redis_server.kill()
            s3[1].send_signal(signal.SIGSTOP)
            SYSTEM_CLOCK.sleep(2.0)  # an absence that everybody meets
            s3[1].send_signal(signal.SIGCONT)
            redis_server.start()
    finally:
        run.finish()
    assert [run.node(*node)["restarts"] for node in (("trainer", 0), ("worker", 0), ("worker", 1))] == [0, 0, 0]
    rows = run.rows("trainer-0")
    assert rows[-1]["actor_steps"] >= 30_000
    assert all(row.get("dropped_duplicates", 0) == 0 for row in rows)


@pytest.mark.timeout(RUN_S + 60)
def test_a_run_that_was_killed_is_resumed_from_the_command_line(tmp_path, monkeypatch, redis_server, s3):
    monkeypatch.setenv("REDIS_URL", redis_server.url)
    more = ["--memory-backend", "redis", "--data-store", s3[0], "--max-steps", "30000"]
    run = Run(tmp_path / "run", "ppo", *more)
    try:
        until(RUN_S, "some steps", lambda: run.progress() >= 0.3)
        run.process.kill()  # its nodes end with it
        run.process.wait(READY_S)
        pids = [node["pid"] for node in json.loads((run.directory / "run.json").read_text())["nodes"]]
        until(READY_S, "the end of the nodes", lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids))
        before = run.rows("trainer-0")[-1]
    finally:
        run.output.close()
    again = Run(tmp_path / "run", "ppo", "--resume")  # with the settings of the run
    again.finish()
    after = [row for row in again.rows("trainer-0") if row["policy"] > before["policy"]]
    assert after[0]["actor_steps"] > before["actor_steps"]
    assert again.rows("trainer-0")[-1]["actor_steps"] >= 30_000
    assert "goes on from policy" in (tmp_path / "run" / "logs" / "trainer-0.log").read_text()
