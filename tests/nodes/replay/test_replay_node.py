"""The replay node, run as a launcher runs it."""

import threading

import pytest

from topology.context import NodeContext, bind_context
from topology.nodes import replay
from topology.nodes.replay import rate_limiters, selectors
from topology.nodes.replay.node import ReverbNode

WAIT_S = 20


def tables():
    return [replay.Table("table", selectors.Fifo(), selectors.Fifo(), 100, rate_limiters.MinSize(1))]


class Run:
    def __init__(self, node, tmp_path, run_directory):
        (address,) = node.addresses
        self.context = NodeContext(
            label="replay",
            index=0,
            launch_type="test_mt",
            run_directory=run_directory,
            endpoints={address.id: f"unix:{tmp_path}/s"},
        )
        self.client = replay.Client(f"unix:{tmp_path}/s")
        self.error = None
        self._thread = threading.Thread(target=self._run, args=(node,))
        self._thread.start()

    def _run(self, node):
        with bind_context(self.context):
            try:
                node.run()
            except Exception as error:
                self.error = error

    def stop(self):
        self.context.stop.set()
        self._thread.join(WAIT_S)
        self.client.close()
        return self.error


@pytest.fixture
def run(tmp_path):
    runs = []

    def start(node, run_directory=None):
        runs.append(Run(node, tmp_path, run_directory))
        return runs[-1]

    yield start
    for each in runs:
        each.stop()


def test_checkpoints_at_the_stop_are_restored(run, tmp_path):
    for expected in range(3):
        running = run(ReverbNode(tables, checkpoint_time_delta_minutes=10), tmp_path / "run")
        assert running.client.server_info(WAIT_S)["table"].current_size == expected
        running.client.insert({"x": expected}, {"table": 1.0})
        assert running.stop() is None
    (found,) = (tmp_path / "run/checkpoints/replay/replay-0").iterdir()
    assert found.name == "000000000003"


def test_checkpoints_every_so_often(run, tmp_path):
    saved = threading.Event()

    class Telling(replay.DefaultCheckpointer):
        def save(self, tables):
            path = super().save(tables)
            saved.set()
            return path

    running = run(ReverbNode(tables, lambda: Telling(tmp_path / "kept"), checkpoint_time_delta_minutes=0.001))
    assert saved.wait(WAIT_S)
    assert running.stop() is None


def test_a_full_disk_does_not_stop_the_node(run, tmp_path, caplog):
    tried = threading.Event()

    class Full(replay.DefaultCheckpointer):
        def save(self, tables):
            if not tried.is_set():
                tried.set()
                raise replay.CheckpointError("no checkpoint was written")
            return super().save(tables)

    running = run(ReverbNode(tables, lambda: Full(tmp_path / "kept"), checkpoint_time_delta_minutes=0.001))
    assert tried.wait(WAIT_S)
    running.client.insert({"x": 1}, {"table": 1.0})
    assert running.stop() is None
    assert "goes on without a new checkpoint" in caplog.text


def test_without_a_period_a_client_says_when(run, tmp_path):
    running = run(ReverbNode(tables, lambda: replay.DefaultCheckpointer(tmp_path / "kept")))
    assert running.client.checkpoint() == str(tmp_path / "kept/000000000001")
    running.stop()
    assert len(list((tmp_path / "kept").iterdir())) == 1


def test_arguments_are_checked(run):
    with pytest.raises(TypeError, match="a function that returns tables"):
        ReverbNode(tables())
    with pytest.raises(TypeError, match="checkpoint_ctor must be a function"):
        ReverbNode(tables, "path")
    with pytest.raises(ValueError, match="checkpoint_time_delta_minutes must be above 0, got 0"):
        ReverbNode(tables, None, 0)
    running = run(ReverbNode(tables, checkpoint_time_delta_minutes=1))
    running._thread.join(WAIT_S)
    assert "keeps no run directory" in str(running.error)
