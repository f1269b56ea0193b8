"""Samples that come as soon as there is one, and signatures of single steps."""

import numpy as np
import pytest

from topology.errors import ReplayDeadlineExceeded
from topology.nodes import replay
from topology.nodes.replay import rate_limiters
from topology.nodes.replay.links import SampleCallArguments


def some(client, at_most, timeout_s=None):
    return client.link.submit_sample(SampleCallArguments("table", at_most, timeout_s, some=True))


def fill(client, count):
    with client.trajectory_writer(1) as writer:
        for value in range(count):
            writer.append(value)
            writer.create_item("table", 1.0, writer.history[-1])


@pytest.mark.parametrize("local", [False, True])
def test_some_are_those_that_can_be_drawn_when_the_first_can(serve, local):
    remote = serve(replay.Table.queue("table", 10))
    client = remote.server.localhost_client() if local else remote
    fill(client, 3)
    assert some(client, 2).result(20).groups[0].leaves[0].tolist() == [0, 1]
    assert some(client, 5).result(20).groups[0].leaves[0].tolist() == [2]
    waiting = some(client, 5)
    assert not waiting.done()
    fill(client, 1)
    assert waiting.result(20).groups[0].leaves[0].tolist() == [0]
    with pytest.raises(ReplayDeadlineExceeded):
        some(client, 5, 0.0).result(20)


def test_what_was_drawn_for_others_comes_first_and_more_is_added(serve, make_table):
    client = serve(make_table(rate_limiter=rate_limiters.SampleToInsertRatio(1.0, 1, (-3.0, 10.0))))
    fill(client, 1)
    asked = client.link.submit_sample(SampleCallArguments("table", 9, None))  # of which four may be drawn
    assert some(client, 9, 0.0).exception(20) is not None
    asked.cancel()
    fill(client, 2)
    assert some(client, 9).result(20).keys.size == 6


def test_the_first_writer_takes_signatures_of_steps(serve, make_table):
    signature = {"x": replay.Spec((None, 2), np.float32)}
    client = serve(make_table(signature=signature))
    steps = {"x": np.zeros((5, 2), np.float32)}
    with client.writer(5) as writer:
        for _ in range(3):
            writer.append(steps)
        writer.create_item("table", 3, 1.0)
    assert client.sample_batch("table", 1).data["x"].shape == (1, 3, 5, 2)
    client.reset("table")
    client.insert(steps, {"table": 1.0})
    assert client.sample_batch("table", 1).data["x"].shape == (1, 1, 5, 2)
    with client.trajectory_writer(5) as writer:
        writer.append(steps)
        with pytest.raises(ValueError, match="signature"):
            writer.create_item("table", 1.0, {"x": writer.history["x"][:]})
    with client.writer(5) as writer:
        writer.append({"x": np.zeros((5, 3), np.float32)})
        with pytest.raises(ValueError, match="signature"):
            writer.create_item("table", 1, 1.0)
