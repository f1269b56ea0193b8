"""What users of Launchpad and of its neighbours reported, as programs of theirs, each in a Python of its own."""

from __future__ import annotations

import itertools
import multiprocessing
import os
import re
import select
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable
from concurrent import futures
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from topology.compat import provided
from topology.testing import Gate, no_leaks

with provided():
    import courier
    import launchpad as lp
    import reverb
    from pybind11_abseil.status import StatusNotOk

pytestmark = pytest.mark.usefixtures("provided")

TIMEOUT_S = 30
ROOT = Path(__file__).parents[2]
KINDS = ["local_mt", "local_mp"]


Run = Callable[..., tuple[int, str]]


def test_nothing_needs_tensorflow_or_parsed_flags(run: Run) -> None:
    """Also: classes of `__main__` travel, an unknown argument is nobody's business, code after `wait` runs."""
    code, output = run(
        """
        import sys
        import numpy as np
        import courier, launchpad as lp, reverb
        from launchpad import flags

        class Adds:
            def add(self, a, b):
                return a + b

        def use(client, replay):
            assert client.add(np.ones(3), 1).tolist() == [2, 2, 2]
            replay.insert([np.zeros(2)], {"table": 1.0})
            (sample,) = replay.sample("table")
            print("sampled", len(list(sample)))

        def main():
            program = lp.Program("report")
            client = program.add_node(lp.CourierNode(Adds), label="adds")
            replay = program.add_node(lp.ReverbNode(lambda: [reverb.Table.queue("table", 10)]), label="replay")
            program.add_node(lp.PyNode(use, client, replay), label="use")
            for kind in ("local_mt", "local_mp"):
                lp.launch(program, launch_type=kind).wait(["use"])
                lp.stop()
            assert not {"tensorflow", "jax", "google.protobuf"} & set(sys.modules), sorted(sys.modules)
            print("the line after")

        if __name__ == "__main__":
            main()
        """,
        "--unknown=1",
    )
    assert code == 0, output
    assert output.count("[use/0] sampled 1") == 2, output
    assert output.splitlines()[-1] == "the line after"
    assert "Killed" not in output


def test_a_script_ends_without_a_word(run: Run) -> None:
    """What it made at its top level goes when half of the interpreter has gone."""
    code, output = run(
        """
        import courier, launchpad as lp, reverb
        server = courier.Server("here")
        server.Bind("double", lp.batched_handler(2, timeout=0.01)(lambda numbers: 2 * numbers))
        server.Start()
        client = courier.Client(server.address)
        future = client.futures.double(2)
        assert client.double(1) == 2 and future.result() == 4
        alone = lp.batched_handler(2, timeout=0.01)(lambda numbers: numbers)
        alone(1)
        tables = reverb.Server([reverb.Table.queue("queue", 10)])
        replay = reverb.Client(f"localhost:{tables.port}")
        replay.insert([1.0], {"queue": 1.0})

        class Adder:
            def __init__(self):
                self.writer = replay.trajectory_writer(num_keep_alive_refs=1)
            def __del__(self):  # as those of Acme
                self.writer.flush(0, timeout_ms=10_000)
                self.writer.close()

        adder = Adder()
        adder.writer.append([2.0])
        adder.writer.create_item("queue", 1.0, [adder.writer.history[0][:]])
        """
    )
    assert (code, output) == (0, "")


def test_how_a_process_is_started(run: Run, tmp_path: Path) -> None:
    """`args`, `interpreter_args` and `env` reach the node; the environment is there when its modules are imported."""
    (tmp_path / "imported.py").write_text("import os\nAT_IMPORT = os.environ.get('WHERE')\n")
    code, output = run(
        """
        import sys
        from absl import app, flags
        import launchpad as lp
        from launchpad.nodes.python.local_multi_processing import PythonProcess
        flags.DEFINE_integer("foo", 0, "a flag of the script")
        flags.DEFINE_bool("jit", True, "another")

        def show():
            import imported
            print(flags.FLAGS.foo, flags.FLAGS.jit, sys.flags.dev_mode, imported.AT_IMPORT)

        def main(_):
            program = lp.Program("report")
            program.add_node(lp.PyNode(show), label="shows")
            program.add_node(lp.PyNode(print, "as it is"), label="as_it_is")
            arguments = {"foo": 5, "jit": False}
            process = PythonProcess(args=arguments, interpreter_args={"X": "dev"}, env={"WHERE": "there"})
            lp.launch(program, lp.LaunchType.LOCAL_MULTI_PROCESSING,
                      local_resources={"shows": process, "as_it_is": []}, terminal="xterm").wait()
            try:
                lp.launch(program, local_resources={"typo": process})
            except ValueError as error:
                print(error)

        if __name__ == "__main__":
            app.run(main)
        """,
        "--lp_launch_type=local_mp",
        "--lp_termination_notice_secs=3",
        "--tmux_open_window=x",
        "--foo=2",
    )
    assert code == 0, output
    assert {"[shows/0] 5 False True there", "[as_it_is/0] as it is"} <= set(output.splitlines())
    assert "'xterm' is not opened here" in output
    assert re.search(r"typo.*shows", output), output


def test_a_failed_node_stops_the_program_and_leaves_nothing(run: Run) -> None:
    code, output = run(
        """
        import time
        import launchpad as lp

        def learn():
            raise RuntimeError("the learner has died")

        def act():
            while True:
                time.sleep(0.01)

        program = lp.Program("report")
        program.add_node(lp.PyNode(learn), label="learner")
        for _ in range(2):
            program.add_node(lp.PyNode(act), label="actor")
        if __name__ == "__main__":
            lp.launch(program, "local_mp").wait()
        """
    )
    assert code == 1
    last = output.rstrip().splitlines()[-1]
    assert "the learner has died" in last, output
    assert "learner/0" in output


@pytest.mark.parametrize("kind", KINDS)
def test_a_finished_program_ends_cleanly(run: Run, kind: str) -> None:
    """Blocked calls and long sleeps do not keep it; results can still be read; `stop` in the script is a stop."""
    code, output = run(
        f"""
        import time
        import launchpad as lp

        class Holds:
            def block(self):
                lp.wait_for_stop()
            def result(self):
                return 17

        def sleep():
            for _ in range(1000):
                time.sleep(0.5)

        lp.stop()  # nothing runs: a warning
        program = lp.Program("report")
        holds = program.add_node(lp.CourierNode(Holds), label="holds")
        program.add_node(lp.PyNode(lambda client: client.block(), holds), label="blocked")
        program.add_node(lp.PyNode(sleep), label="sleeps")
        if __name__ == "__main__":
            run = lp.launch(program, "{kind}")
            print("result", holds.dereference().result())
            lp.stop()
            run.wait()
            print("ended", set(run.exit_codes.values()))
        """
    )
    assert code == 0, output
    assert "nothing to stop" in output
    assert "result 17" in output
    assert output.splitlines()[-1] == "ended {0}" if kind == "local_mp" else "ended" in output
    assert "Killed" not in output
    assert "did not" not in output


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_the_launcher_is_ended_from_outside(start: Callable[..., subprocess.Popen[str]], number: int) -> None:
    process = start(
        """
        import os
        import launchpad as lp

        def act():
            print("pid", os.getpid(), flush=True)
            lp.wait_for_stop()

        program = lp.Program("report")
        for _ in range(2):
            program.add_node(lp.PyNode(act), label="actor")
        if __name__ == "__main__":
            lp.launch(program, "local_mp").wait()
        """
    )
    assert process.stdout is not None
    found = (re.search(r"pid (\d+)", line) for line in process.stdout)
    nodes = [psutil.Process(int(match[1])) for match in itertools.islice(filter(None, found), 2)]
    process.send_signal(number)
    output, _ = process.communicate(timeout=TIMEOUT_S)
    _, alive = psutil.wait_procs(nodes, timeout=5)
    assert not alive
    expected = {signal.SIGKILL: -signal.SIGKILL, signal.SIGTERM: 143, signal.SIGINT: -signal.SIGINT}
    assert process.returncode == expected[number], output  # type: ignore[index]


def test_launches_from_children_threads_and_one_after_the_other(run: Run) -> None:
    code, output = run(
        """
        import multiprocessing, threading
        import launchpad as lp

        def run(name):
            program = lp.Program(name)
            program.add_node(lp.PyNode(print, "ran", name), label="prints")
            lp.launch(program, "local_mp").wait()

        if __name__ == "__main__":
            context = multiprocessing.get_context("spawn")
            workers = [context.Process(target=run, args=("child",)), threading.Thread(target=run, args=("thread",))]
            for worker in workers:
                worker.start()
            for worker in workers:
                worker.join()
            run("first"), run("second")
        """
    )
    assert code == 0, output
    for name in ("child", "thread", "first", "second"):
        assert f"ran {name}" in output, output


def test_a_late_node_is_killed_and_the_script_goes_on(run: Run) -> None:
    code, output = run(
        """
        import signal, time
        from absl import app
        import launchpad as lp

        class Stops:
            def now(self):
                lp.stop()

        def deaf(stops):
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            stops.futures.now()
            while True:
                try:
                    time.sleep(1)
                except SystemExit:
                    pass

        def main(_):
            program = lp.Program("report")
            stops = program.add_node(lp.CourierNode(Stops), label="stops")
            program.add_node(lp.PyNode(deaf, stops), label="deaf")
            lp.launch(program, "local_mp").wait()
            print("the line after")

        if __name__ == "__main__":
            app.run(main)
        """,
        "--lp_termination_notice_secs=0",
    )
    assert code == 0, output
    assert "deaf/0 did not end within the notice" in output
    assert output.splitlines()[-1] == "the line after"


# --- in this process ------------------------------------------------------------------------------------------------


@pytest.fixture
def client() -> Any:
    server = courier.Server("report")
    server.Bind("same", lambda value: value)
    server.Bind("fail", lambda: 1 / 0)
    server.Start()
    with courier.Client(server.address, call_timeout=TIMEOUT_S) as client:
        yield client
    server.Stop()


@pytest.mark.parametrize(
    "value", [np.arange(6).reshape(2, 3), np.float32(1.5), np.array(3), b"\x00\xff", {"a": [np.ones(3, bool)]}, 1 << 70]
)
def test_values_travel_both_ways(client: Any, value: Any) -> None:
    np.testing.assert_equal(client.same(value), value)
    np.testing.assert_equal(client.futures.same(value=value).result(TIMEOUT_S), value)


def test_what_cannot_travel_is_said_at_once(client: Any) -> None:
    with pytest.raises(TypeError, match="lock"):
        client.same(threading.Lock())
    assert client.same(1) == 1


def test_the_errors_of_futures_are_seen(client: Any) -> None:
    seen: list[BaseException | None] = []
    done = threading.Event()
    future = client.futures.fail()
    future.add_done_callback(lambda future: (seen.append(future.exception()), done.set()))
    assert done.wait(TIMEOUT_S)
    with pytest.raises(StatusNotOk):
        future.result(TIMEOUT_S)
    assert isinstance(seen[0], ZeroDivisionError)


def test_the_first_of_several_futures(client: Any) -> None:
    gate = Gate()
    server = courier.Server("waits")
    server.Bind("wait", gate)
    with server, courier.Client(server.address) as slow:
        late, soon = slow.futures.wait(), client.futures.same(1)
        done, _ = futures.wait([late, soon], TIMEOUT_S, return_when=futures.FIRST_COMPLETED)
        assert done == {soon}
        gate.release()
        assert late.result(TIMEOUT_S) is None


@pytest.mark.parametrize("address", ["nowhere.invalid:1", "nothing", "unix:/nowhere/s"])
def test_an_address_that_leads_nowhere(client: Any, address: str) -> None:
    with courier.Client(address, wait_for_ready=False) as lost, pytest.raises(StatusNotOk, match="failed to connect"):
        lost.anything()
    assert client.same(1) == 1


class Inference:
    """An inference server: a batch of observations and of states of a recurrent network."""

    @lp.batched_handler(batch_size=4, timeout=0.001, pad_batch=True)
    def select_action(self, observation: Any, state: Any) -> Any:
        assert observation.shape == (4, 2), "one shape only, for compiled functions"
        hidden, cell = state
        return observation.sum(axis=1), (hidden + 1, cell)


class Actor:
    def __init__(self, inference: Any, counter: Any) -> None:
        self._inference, self._counter = inference, counter

    def run(self) -> None:
        state = (np.zeros(3, np.float32), np.ones(3, np.float32))
        for step in range(10):
            action, state = self._inference.select_action(np.full(2, step, np.float32), state)
            assert action == 2 * step
            assert state[0].tolist() == [step + 1] * 3
            self._counter.increment()


class Counter:
    def __init__(self) -> None:
        self.count, self._lock = 0, threading.Lock()

    def increment(self) -> None:
        with self._lock:
            self.count += 1

    def get(self) -> int:
        return self.count


def test_actors_of_one_inference_server() -> None:
    program = lp.Program("inference")
    inference = program.add_node(lp.CourierNode(Inference, courier_kwargs={"thread_pool_size": 2}), label="inference")
    counter = program.add_node(lp.CourierNode(Counter), label="counter")
    with program.group("actor"):
        for _ in range(6):
            program.add_node(lp.CourierNode(Actor, inference, counter))
    with no_leaks():
        run = lp.launch(program, "test_mt")
        run.wait(["actor"])
        assert counter.dereference().get() == 60
        run.stop()


def test_a_replay_node_stops_with_blocked_samplers() -> None:
    blocked = Gate()

    def sample(client: Any) -> None:
        blocked()
        list(client.sample("queue"))

    program = lp.Program("replay")
    replay = program.add_node(lp.ReverbNode(lambda: [reverb.Table.queue("queue", max_size=10)]), label="replay")
    with program.group("sampler"):
        for _ in range(4):
            program.add_node(lp.PyNode(sample, replay))
    with no_leaks():
        run = lp.launch(program, "test_mt", serialize_py_nodes=False)
        blocked.wait_entered()
        blocked.release()
        assert run.stop(timeout=TIMEOUT_S)
        run.wait()


def test_a_blocked_call_says_why_the_program_stopped() -> None:
    """A test that drives a node does not wait for the run, which would raise the error of the other node."""
    gate = Gate()
    server = courier.Server("waits")
    server.Bind("wait", gate)
    with server, courier.Client(server.address) as client:
        future = client.futures.wait()
        gate.wait_entered()
        client._core.on_stop("node failed: the learner has died")
        for call in (lambda: future.result(TIMEOUT_S), client.wait):
            with pytest.raises(StatusNotOk, match=r"stop.* \(node failed: the learner has died\)"):
                call()
        gate.release()


def test_nodes_know_who_they_are() -> None:
    import topology

    def run_of() -> list[tuple[str, int]]:
        seen: list[tuple[str, int]] = []
        program = lp.Program("who")
        with program.group("actor"):
            for _ in range(3):
                program.add_node(
                    lp.PyNode(lambda: seen.append((topology.get_context().name, topology.get_context().seed)))
                )
        lp.launch(program, "test_mt", serialize_py_nodes=False).wait()
        return sorted(seen)

    first = run_of()
    assert [name for name, _ in first] == ["actor/0", "actor/1", "actor/2"]
    assert len({seed for _, seed in first}) == 3
    assert run_of() == first, "the same on every run"


def test_a_debugger_stops_in_nodes() -> None:
    seen: set[str] = set()

    def trace(frame: Any, event: str, _: Any) -> Any:
        seen.add(frame.f_code.co_name)

    def code_of_the_node() -> None:
        pass

    program = lp.Program("debugged")
    program.add_node(lp.PyNode(code_of_the_node), label="node")
    threading.settrace(trace)
    try:
        lp.launch(program, "test_mt", serialize_py_nodes=False).wait()
    finally:
        threading.settrace(None)  # type: ignore[arg-type]  # what the documents say
    assert "code_of_the_node" in seen


DEBUGGED = """
    import launchpad as lp

    class Learner:
        def run(self):
            weights = 41
            breakpoint()
            print("went on with", weights)

    program = lp.Program("debugged")
    program.add_node(lp.PyClassNode(Learner), label="learner")
    program.add_node(lp.PyNode(print, "beside it"), label="other")
    if __name__ == "__main__":
        lp.launch(program, "local_mp").wait()
        print("the line after")
    """


def test_a_debugger_in_a_process_has_the_terminal(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(textwrap.dedent(DEBUGGED))
    ours, theirs = os.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "topology.compat", str(script)],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env={**os.environ, "PYTHONPATH": str(ROOT), "LP_DEBUG": "learner/0", "TERM": "dumb"},
    )
    os.close(theirs)
    seen = ""

    def wait_for(text: str) -> None:
        nonlocal seen
        while text not in seen:
            assert select.select([ours], [], [], TIMEOUT_S)[0], seen
            seen += os.read(ours, 4096).decode()
        seen = seen.partition(text)[2]

    try:
        wait_for("(Pdb) ")
        os.write(ours, b"p weights + 1\n")
        wait_for("42")
        wait_for("(Pdb) ")
        os.write(ours, b"continue\n")
        wait_for("went on with 41")
        wait_for("the line after")
        assert process.wait(TIMEOUT_S) == 0
    finally:
        process.kill()
        process.wait()
        os.close(ours)


def test_a_launch_in_an_interactive_session(tmp_path: Path) -> None:
    """As in a notebook: `__main__` has no file, its classes travel, and it goes on after the stop."""
    lines = """
        import launchpad as lp

        class Adds:
            def add(self, number):
                return number + 1

        def use(client):
            print("added", client.add(1))

        for kind in ("local_mt", "local_mp"):
            program = lp.Program("cell")
            client = program.add_node(lp.CourierNode(Adds), label="adds")
            program.add_node(lp.PyNode(use, client), label="use")
            run = lp.launch(program, kind)
            run.wait(["use"])
            lp.stop()
            run.wait()

        print("alive", set(run.exit_codes.values()))
        """
    command = [sys.executable, "-i", "-q", "-c", "import topology.compat; topology.compat.install()"]
    result = subprocess.run(
        command,
        input=textwrap.dedent(lines),
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        timeout=TIMEOUT_S,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout.count("added 2") == 2, result.stdout + result.stderr
    assert "alive {0}" in result.stdout


def test_a_replay_client_in_a_spawned_process() -> None:
    """Collectors that are processes of their own are given a client."""
    server = reverb.Server([reverb.Table.queue("queue", max_size=10)])
    client = reverb.Client(f"localhost:{server.port}")
    worker = multiprocessing.get_context("spawn").Process(target=client.insert, args=([np.float32(7)], {"queue": 1.0}))
    worker.start()
    (sample,) = client.sample("queue", emit_timesteps=False)
    worker.join(TIMEOUT_S)
    assert worker.exitcode == 0
    worker.close()
    assert float(sample.data[0][0]) == 7
    server.stop()


class Crashes:
    """Ends its process when it is told to."""

    def __init__(self, path: Path) -> None:
        self._path, self._is_first = path, not path.exists()

    def crash(self) -> None:
        self._path.touch()
        os._exit(139)  # as after a segmentation fault

    def is_first(self) -> bool:
        return self._is_first


def test_a_group_that_is_started_again_keeps_its_address(tmp_path: Path) -> None:
    program = lp.Program("restarts")
    node = lp.CourierNode(Crashes, tmp_path / "crashed")
    program.add_node(node, label="actor")
    with no_leaks():
        run = lp.launch(program, "test_mp", restarts={"actor": 1})
        with node.create_handle().dereference() as client:
            assert client.is_first()
            with pytest.raises(StatusNotOk):
                client.crash()
            assert not client.is_first()
        run.stop()
        run.wait()
