"""A writer is killed with SIGKILL at every step of saving, in the middle of what it writes.

Whatever it was doing: readers find a whole policy at once, and the next writer goes on when the lease is over.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[3]
DEADLINE_S = 150.0

SCRIPT = '''
"""Arguments: url, options as JSON. Prints at how many steps a writer was killed."""
import json, os, signal, socket, sys, traceback
from pathlib import Path
import numpy as np
import topology.clock, topology.errors
from topology.nodes.store import codec, record_store  # imported once, before the forks
from topology.nodes.store.policies import open_data_store
if sys.argv[1].startswith(("s3:", "redis:", "unix:")):
    import importlib
    importlib.import_module("s3fs" if sys.argv[1].startswith("s3:") else "redis")

URL, OPTIONS = sys.argv[1], json.loads(sys.argv[2])


class Later:
    """A clock by which the lease of the killed writer is over when it was seen for the second time."""
    wait_for = topology.clock.SYSTEM_CLOCK.wait_for
    time = topology.clock.SYSTEM_CLOCK.time
    later_s = 0.0
    def monotonic(self):
        return topology.clock.SYSTEM_CLOCK.monotonic() + self.later_s


class Killer:
    """Counts steps; at one of them half of the work is done, and then the process is dead."""
    def __init__(self, at):
        self.at, self.step = at, 0
    def guard(self, owner, name, part=None):
        act = getattr(owner, name)
        def guarded(*args, **kwargs):
            here, self.step = self.step, self.step + 1
            if here == self.at:
                if part is not None:
                    part(act, *args, **kwargs)
                os.kill(os.getpid(), signal.SIGKILL)
            return act(*args, **kwargs)
        setattr(owner, name, guarded)


def half_written(write, target, data, *rest):
    half = memoryview(data).cast("B")
    write(target, half[: len(half) // 2], *rest)


def weights(value):
    return {"w": np.full(20_000, value), "b": np.full(3, value)}


def save_and_die(step):
    store = open_data_store(URL, **OPTIONS)
    lease = store.lease("trainer", 60.0)
    killer = Killer(step)
    for name in ("fsync", "link", "replace", "unlink", "mkdir"):
        killer.guard(os, name)
    killer.guard(os, "write", half_written)
    for name in ("send", "sendall"):
        killer.guard(socket.socket, name, half_written)
    number = store.newest() + 1
    store.save(weights(number), {"value": number}, state=weights(-number), lease=lease)
    print(killer.step, "steps", flush=True)


def whole(policy):
    value = policy.meta["value"]
    assert value == policy.number, (policy.number, policy.meta)
    for array in policy.arrays.values():
        assert (array == value).all(), "torn"


def look_and_go_on(step):
    """After the kill."""
    clock = Later()
    with open_data_store(URL, clock=clock, **OPTIONS) as store:
        newest = store.newest()
        assert newest in (2 * step, 2 * step + 1), (step, newest)
        whole(store.load())
        whole(store.wait_newer(newest - 1, timeout_s=30.0))
        state = store.load_state()
        assert (state["w"] == -newest).all()
        try:
            store.lease("other", 60.0)
        except topology.errors.LeaseHeld as held:
            assert held.owner == "trainer"
        else:
            raise AssertionError("the lease is not over")
        clock.later_s = 61.0
        with store.lease("other", 60.0) as lease:
            leftovers = set(store._medium.leftovers())
            assert leftovers <= store._register.read().blob_names(), leftovers
            if "://" not in URL:
                files = [path for path in Path(URL).rglob("*") if path.is_file()]
                assert {path.suffix for path in files} <= {"", ".policy", ".state"}, files
            while newest < 2 * step + 2:
                newest += 1
                assert store.save(weights(newest), {"value": newest}, state=weights(-newest), lease=lease) == newest
        whole(store.load())


def child(function, *arguments):
    """Its exit code; negative for a signal."""
    pid = os.fork()
    if pid == 0:
        try:
            function(*arguments)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def begin():
    with open_data_store(URL, **OPTIONS) as store:
        store.save(weights(0), {"value": 0}, state=weights(0))


assert child(begin) == 0
for step in range(200):
    code = child(save_and_die, step)
    if code == 0:
        print("killed", step, flush=True)
        break
    assert code == -signal.SIGKILL, code
    assert child(look_and_go_on, step) == 0, f"after the kill at step {step}"
else:
    raise AssertionError("saving never ended")
'''


@pytest.fixture(scope="module")
def servers(request: pytest.FixtureRequest) -> Any:
    """Gives the server by its fixture's name, begun before the guard of a test looks around."""
    if request.param == "directory":
        return None
    return request.getfixturevalue(request.param)


def run(url: str, options: dict[str, Any], deadline_s: float = DEADLINE_S) -> int:
    """Runs the script; returns at how many steps the writer was killed."""
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, url, json.dumps(options)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=deadline_s,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return int(done.stdout.rpartition("killed")[2])


@pytest.mark.parametrize("servers", ["directory"], indirect=True)
def test_a_directory(servers: Any, tmp_path: Path) -> None:
    assert run(str(tmp_path / "store"), {"keep": 2}) >= 15


@pytest.mark.parametrize("servers", ["shared_redis"], indirect=True)
def test_redis(servers: Any) -> None:
    if servers is None:
        pytest.skip("redis-server is not installed (Debian: apt-get install redis-server), or redis-py is not")
    assert run(f"{servers.url}&name=kills", {"keep": 2}) >= 5


@pytest.mark.slow
@pytest.mark.timeout(660)
@pytest.mark.parametrize("servers", ["s3_server"], indirect=True)
def test_an_object_store(servers: Any) -> None:
    servers.make_bucket("bucket-of-kills")
    assert run("s3://bucket-of-kills/store", {"keep": 2, **servers.options}, 600.0) >= 5
