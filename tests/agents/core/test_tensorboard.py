"""Event files: what another program reads back from them."""

import struct
import subprocess
import sys

import numpy as np
import pytest
from tensorboardX.proto.event_pb2 import Event
from tensorboardX.record_writer import masked_crc32c

from topology.agents.core.metrics import make_writer
from topology.agents.core.tensorboard import EventWriter, check_installed
from topology.errors import LaunchError, ProgramError


def read(directory):
    """All events of a directory; the checksums are checked."""
    events = []
    for path in sorted(directory.iterdir()):
        assert ".tfevents." in path.name
        data = path.read_bytes()
        while data:
            (length,) = struct.unpack("<Q", data[:8])
            message, checks = data[12 : 12 + length], (data[8:12], data[12 + length : 16 + length])
            assert [struct.unpack("<I", check)[0] for check in checks] == [
                masked_crc32c(part) for part in (data[:8], message)
            ]
            events.append(Event.FromString(message))
            data = data[16 + length :]
    return events


def rows(events):
    return [(event.step, {value.tag: value.simple_value for value in event.summary.value}) for event in events]


def test_rows_are_events_at_their_steps(tmp_path, clock):
    writer = EventWriter(tmp_path / "learner-0", clock)
    writer.write(loss=np.float32(0.5), learner_steps=16)
    clock.advance(2.5)
    writer.write(loss=float("nan"), actor_steps=7, learner_steps=24)
    writer.write(queue=3)
    version, *events = read(tmp_path / "learner-0")
    assert version.file_version == "brain.Event:2"
    assert [event.wall_time for event in events] == [1000.0, 1002.5, 1002.5]
    assert rows(events) == [
        (16, {"loss": 0.5, "learner_steps": 16}),
        (7, {"actor_steps": 7, "learner_steps": 24}),
        (3, {"queue": 3}),
    ]


def test_a_run_that_goes_on_adds_a_file(tmp_path, clock):
    EventWriter(tmp_path, clock).write(loss=1)
    clock.advance(10)
    EventWriter(tmp_path, clock).write(loss=2)
    assert len(list(tmp_path.iterdir())) == 2
    assert [values for _, values in rows(read(tmp_path)) if values] == [{"loss": 1}, {"loss": 2}]


def test_a_node_writes_both_kinds_only_when_asked(context):
    make_writer(context).write(loss=1)
    assert not (context.run_directory / "tensorboard").exists()
    make_writer(context, tensorboard=True).write(loss=2)
    assert rows(read(context.run_directory / "tensorboard" / "actor-2"))[1:] == [(1, {"loss": 2})]
    assert len((context.run_directory / "metrics" / "actor-2.jsonl").read_text().splitlines()) == 2


def test_a_directory_that_cannot_be_written_says_so(tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(LaunchError, match="cannot be written"):
        EventWriter(tmp_path / "file").write(loss=1)


def test_without_the_package_the_error_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorboardX", None)
    with pytest.raises(ProgramError, match=r"rl-topology\[tensorboard\]"):
        check_installed()


def test_it_needs_no_tensorflow(tmp_path):
    code = f"""
import pathlib, sys
from topology.agents.core.tensorboard import EventWriter
EventWriter(pathlib.Path({str(tmp_path)!r})).write(loss=1)
assert not {{"tensorflow", "torch", "jax"}} & set(sys.modules)
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=50)
