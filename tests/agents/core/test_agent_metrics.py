import json

import numpy as np
import pytest

from topology.agents.core.metrics import Averages, MetricsWriter
from topology.errors import LaunchError


def test_rows_are_json_lines_under_the_name_of_the_node(context, clock):
    writer = MetricsWriter(context, clock)
    writer.write(loss=np.float32(0.5), actor_steps=3)
    clock.advance(1.5)
    writer.write(loss=float("nan"), actor_steps=np.int64(4))
    lines = (context.run_directory / "metrics" / "actor-2.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines] == [
        {"time": 1000.0, "loss": 0.5, "actor_steps": 3},
        {"time": 1001.5, "actor_steps": 4},
    ]


def test_without_a_run_directory_rows_go_nowhere():
    MetricsWriter(None).write(loss=1.0)


def test_a_directory_that_cannot_be_written_says_so(context):
    (context.run_directory / "metrics").write_text("in the way")
    with pytest.raises(LaunchError, match="cannot be written"):
        MetricsWriter(context).write(loss=1.0)


def test_averages_lose_nothing_between_rows(rows, clock):
    averages = Averages(rows, period_s=2.0, clock=clock)
    averages.add(episode_return=1.0)
    averages.add(episode_return=-1.0)
    averages.add(episode_return=3.0)
    assert not averages.due
    clock.advance(2.0)
    assert averages.due
    averages.write(rates={"steps_per_second": 30}, actor_steps=30)
    assert not averages.due
    clock.advance(2.0)
    averages.write(actor_steps=31)
    assert rows == [{"episode_return": 1.0, "steps_per_second": 15.0, "actor_steps": 30}, {"actor_steps": 31}]


def test_a_row_is_overdue_after_ten_periods(rows, clock):
    averages = Averages(rows, period_s=2.0, clock=clock)
    clock.advance(19.9)
    assert averages.due
    assert not averages.overdue
    clock.advance(0.1)
    assert averages.overdue
    averages.write()
    assert not averages.overdue


def test_of_a_maximum_the_largest_is_kept_until_the_row_is_written(rows, clock):
    averages = Averages(rows, clock=clock)
    for lag in (-3, -1, -2):
        averages.add(lag_mean=lag, lag_max=lag)
    averages.write()
    averages.add(lag_mean=-9, lag_max=-9)
    averages.write()
    assert rows == [{"lag_mean": -2.0, "lag_max": -1.0}, {"lag_mean": -9.0, "lag_max": -9.0}]
