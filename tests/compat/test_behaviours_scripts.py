"""What users report of terminals, output, failures and Ctrl-C, as scripts of theirs in a Python of their own."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

TIMEOUT_S = 100
ROOT = Path(__file__).parents[2]
Run = Callable[..., tuple[int, str]]
Start = Callable[..., subprocess.Popen[str]]


def program(folder: Path, name: str, text: str) -> None:
    """An executable of that name in `folder`."""
    path = folder / name
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)


EVERY_TERMINAL = """
    import sys
    import launchpad as lp

    def say(terminal):
        print("said in", terminal)

    if __name__ == "__main__":
        for terminal in (None, "current_terminal", "xterm", "gnome-terminal", "tmux_session", "output_to_files"):
            program = lp.Program("terminals")
            program.add_node(lp.PyNode(say, terminal), label="node")
            lp.launch(program, "local_mt", terminal=terminal).wait()
            print("after", terminal, flush=True)
        try:
            lp.launch(program, "local_mt", terminal="moon")
        except RuntimeError as error:
            print("refused:", error)
    """


def test_no_window_is_opened_and_what_is_missing_is_said(run: Run, tmp_path: Path) -> None:
    """Though there is a display, and the programs for windows are there. No tmux is."""
    folder = tmp_path / "programs"
    folder.mkdir()
    for name in ("xterm", "gnome-terminal", "gnome-terminal-server", "byobu", "konsole"):
        program(folder, name, f"touch {tmp_path}/opened-{name}")
    code, output = run(EVERY_TERMINAL, PATH=str(folder), DISPLAY=":0", LANG="C.UTF-8")
    assert code == 0, output
    assert list(tmp_path.glob("opened-*")) == []
    for terminal in ("None", "current_terminal", "xterm", "gnome-terminal", "tmux_session"):
        assert f"[node/0] said in {terminal}\n" in output, output
    for told in ("'xterm' is not opened here", "'gnome-terminal' is not opened here", "tmux is not installed"):
        assert output.count(told) == 1, output
    logs = re.findall(r"The output of the nodes is in (\S+)", output)
    assert [(Path(log) / "node-0.log").read_text() for log in logs] == ["said in output_to_files\n"]
    assert "said in output_to_files" not in output
    assert re.search(r"refused: .*'moon': use one of current_terminal, output_to_files, tmux_session", output), output


TMUX = """
case "$1" in
list-sessions) echo other; test -e {taken} && echo launchpad; true;;
new-session) touch {taken}; echo "$@" >> {calls}; echo @1;;
new-window) echo "$@" >> {calls}; echo @2;;
esac
"""


def test_a_session_of_tmux_has_a_name_of_its_own(run: Run, tmp_path: Path) -> None:
    """The flag's, and with a number behind it where a session of that name is there already."""
    folder, calls = tmp_path / "programs", tmp_path / "calls"
    folder.mkdir()
    program(folder, "tmux", TMUX.format(taken=tmp_path / "taken", calls=calls))
    code, output = run(
        """
        import launchpad as lp

        for _ in range(2):
            program = lp.Program("windows")
            for label in ("learner", "actor"):
                program.add_node(lp.PyNode(print, "here"), label=label)
            lp.launch(program, "local_mt", terminal="tmux_session").wait()
        """,
        PATH=f"{folder}:/usr/bin:/bin",
    )
    assert code == 0, output
    first, *rest = calls.read_text().splitlines()
    assert re.match(r"new-session -d -s launchpad .* -n learner/0 ", first)
    assert re.match(r"new-window -d -t launchpad: .* -n actor/0 ", rest[0])
    assert re.match(r"new-session -d -s launchpad_0 .* -n learner/0 ", rest[1])
    assert "tmux attach -t launchpad;" in output
    assert "tmux attach -t launchpad_0;" in output


def test_lines_of_many_writers_are_whole(run: Run) -> None:
    code, output = run(
        """
        import os, sys
        import launchpad as lp

        def write(letter):
            for i in range(200):
                sys.stdout.write(letter * 150)
                sys.stderr.write(letter * 5 + "\\n")
                print(letter * 150)

        if __name__ == "__main__":
            program = lp.Program("writers")
            with program.group("writer"):
                for letter in "abcd":
                    program.add_node(lp.PyNode(write, letter))
            lp.launch(program, "local_mp").wait()
        """
    )
    assert code == 0, output
    lines = output.splitlines()
    assert {bool(re.fullmatch(r"\[writer/\d\] (?:a+|b+|c+|d+)", line)) for line in lines} == {True}
    assert len(lines) == 4 * 200 * 2


FAILS = """
    import os, sys, threading, time
    import launchpad as lp

    class Learner:
        def __init__(self, batch_size):
            self.batch_size = batch_size
            self.arrived = threading.Semaphore(0)

        def arrive(self):
            self.arrived.release()

        def run(self):
            for _ in range(3):
                self.arrived.acquire(timeout=60)
            self.step()

        def step(self):
            raise ValueError(f"a batch of {self.batch_size} does not fit")

    def act(learner, directory):
        open(os.path.join(directory, str(os.getpid())), "w").close()
        learner.arrive()
        while True:
            time.sleep(0.01)

    if __name__ == "__main__":
        program = lp.Program("fails")
        learner = program.add_node(lp.CourierNode(Learner, 32), label="learner")
        with program.group("actor"):
            for _ in range(3):
                program.add_node(lp.PyNode(lambda learner: act(learner, sys.argv[1]), learner))
        lp.launch(program, "local_mp").wait()
    """


def test_a_failure_shows_the_users_lines_and_ends_every_process(run: Run, tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    pids.mkdir()
    code, output = run(FAILS, str(pids))
    assert code == 1
    assert len(os.listdir(pids)) == 3
    assert not [pid for pid in os.listdir(pids) if psutil.pid_exists(int(pid))]
    shown = output[output.rindex("Traceback") :]
    assert re.search(r'script.py", line \d+, in run\n\s+self.step\(\)', shown), output
    assert re.search(r'script.py", line \d+, in step\n\s+raise ValueError', shown), output
    assert "learner/0" in output
    assert output.rstrip().endswith("a batch of 32 does not fit")
    for noise in ("cloudpickle", "pickle.loads", "<frozen", "multiprocessing"):
        assert noise not in output, output


def test_a_second_ctrl_c_ends_it_at_once(start: Start) -> None:
    """Also where a node does not hear of the first, and has ten minutes."""
    process = start(
        """
        import os, signal, time
        import launchpad as lp

        def deaf():
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            lp.register_stop_handler(lambda: print("heard", flush=True))
            print("pid", os.getpid(), flush=True)
            while True:
                time.sleep(0.01)

        if __name__ == "__main__":
            program = lp.Program("deaf")
            program.add_node(lp.PyNode(deaf), label="deaf")
            lp.launch(program, "local_mp").wait()
        """,
        "--lp_termination_notice_secs=600",
    )
    assert process.stdout is not None

    def line(text: str) -> str:
        assert process.stdout is not None
        return next(line for line in process.stdout if text in line)

    try:
        node = psutil.Process(int(line("pid").split()[-1]))
        process.send_signal(signal.SIGINT)
        line("heard")
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=TIMEOUT_S)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == -signal.SIGINT, "which a shell shows as 130"
    assert not psutil.wait_procs([node], timeout=TIMEOUT_S)[1]


@pytest.mark.parametrize("begin", ["app.run(main)", "main(None)"])
def test_nodes_that_are_processes_log_as_programs_of_absl(run: Run, begin: str) -> None:
    """Also where the script itself is none. Acme's loggers write so."""
    code, output = run(
        f"""
        import logging as of_python
        from absl import app, flags, logging
        import launchpad as lp

        flags.DEFINE_string("name", "", "a flag")

        def log():
            logging.info("told by %s", flags.FLAGS.name)
            of_python.getLogger("mine").info("as by Python")
            logging.debug("not asked for")

        def main(_):
            program = lp.Program("logs")
            program.add_node(lp.PyNode(log), label="node")
            lp.launch(program, "local_mp").wait()

        if __name__ == "__main__":
            {begin}
        """,
        "--name=absl",
    )
    assert code == 0, output
    assert re.search(r"^\[node/0\] I\d{4} .*script.py:\d+\] told by absl$", output, re.MULTILINE), output
    assert re.search(r"^\[node/0\] I\d{4} .*script.py:\d+\] as by Python$", output, re.MULTILINE), output
    assert "not asked for" not in output


def test_nodes_that_a_test_runs_itself_do_not_keep_its_process(run: Run) -> None:
    code, output = run(
        """
        import threading
        import launchpad as lp, reverb
        from launchpad.launch.test_multi_threading import address_builder

        nodes = [lp.ReverbNode(lambda: [reverb.Table.queue("queue", 10)]), lp.CourierNode(dict, one=1)]
        address_builder.bind_addresses(nodes)
        for node in nodes:
            threading.Thread(target=node.run).start()
        client = nodes[0].create_handle().dereference()
        client.insert([1.0], {"queue": 1.0})
        print(client.server_info()["queue"].current_size, nodes[1].create_handle().dereference().get("one"))
        """
    )
    assert (code, output) == (0, "1 1\n")


@pytest.mark.parametrize(
    "last", ["app.run(main)", "main(None)", "sys.exit(main(None))", "main(None); threading.Event()"]
)
def test_a_launch_may_be_the_last_line_and_nodes_still_start_threads(run: Run, last: str) -> None:
    """Python itself starts none any more when a script has ended, from 3.12 on."""
    code, output = run(
        f"""
        import sys, threading, time
        from concurrent.futures import ThreadPoolExecutor
        from absl import app
        import launchpad as lp

        class Producer:
            def work(self, number):
                return number + 1

        def consume(producer):
            threading.main_thread().join(1)  # the script has come to its end by then
            with ThreadPoolExecutor(2) as pool:
                print("consumed", producer.futures.work(1).result(), *pool.map(producer.work, [2, 3]))
            lp.stop()

        def main(_):
            program = lp.Program("last")
            producer = program.add_node(lp.CourierNode(Producer), label="producer")
            program.add_node(lp.PyNode(consume, producer), label="consumer")
            lp.launch(program)
            print("launched", flush=True)

        if __name__ == "__main__":
            {last}
        """
    )
    assert code == 0, output
    assert output.count("launched") == 1, output
    assert "[consumer/0] consumed 2 3 4" in output


def test_where_it_does_not_run_it_says_so() -> None:
    code = "import sys; sys.platform = 'win32'\nimport topology.compat"
    done = subprocess.run(
        [sys.executable, "-S", "-c", code],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert done.stderr.splitlines()[-1].startswith("ImportError: rl-topology needs Linux or macOS"), done.stderr


def test_importing_the_names_needs_few_distributions() -> None:
    code = """
import topology.compat; topology.compat.install()
import sys, courier, launchpad, reverb
files = [getattr(module, "__file__", None) or "" for module in list(sys.modules.values())]
print(*sorted({file.partition("site-packages/")[2].partition("/")[0] for file in files if "site-packages/" in file}))
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=TIMEOUT_S, check=True, cwd=ROOT
    )
    found = {name for name in done.stdout.split() if not name.startswith(("_", "topology", "launch"))}
    assert found <= {"absl", "cloudpickle", "numpy", "psutil"}, found


REACHES = """
import topology.compat; topology.compat.install()
import operator, pathlib, launchpad, courier, reverb
root = pathlib.Path(topology.compat.__file__).parent / "modules"
for package in (launchpad, courier, reverb):
    for path in sorted((root / package.__name__).rglob("*.py")):
        name = ".".join(path.relative_to(root / package.__name__).with_suffix("").parts).removesuffix("__init__")
        name = name.rstrip(".")
        if name and not name.startswith("launch."):  # lp.launch is the function, as there
            try:
                operator.attrgetter(name)(package)
            except ModuleNotFoundError as error:
                assert error.name == "tensorflow", error
for package in (launchpad.nodes, courier.python, reverb.platform):
    try:
        package.nowhere
    except AttributeError as error:
        assert "among those that topology.compat provides" in str(error)
print(launchpad.nodes.python.local_multi_processing.PythonProcess.__name__)
"""


def test_modules_are_attributes_of_their_packages() -> None:
    """The originals import all of theirs with the package."""
    done = subprocess.run(
        [sys.executable, "-c", REACHES], capture_output=True, text=True, timeout=TIMEOUT_S, check=False, cwd=ROOT
    )
    assert done.stdout == "PythonProcess\n", done.stderr
