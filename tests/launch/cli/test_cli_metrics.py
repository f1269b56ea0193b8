"""Reading what nodes write, while they write it."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launch.metrics import Metrics, Series, Tail


def test_a_tail_gives_each_whole_line_once(tmp_path: Path) -> None:
    path = tmp_path / "log"
    tail = Tail(path)
    assert list(tail.poll()) == []
    path.write_bytes(b"one\ntw")
    assert list(tail.poll()) == ["one"]
    with path.open("ab") as file:
        file.write(b"o\r\nthree")
    assert list(tail.poll()) == ["two"]
    assert list(tail.poll()) == []


def test_a_tail_begins_again_when_the_file_was_cut(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text("a long first line\n")
    tail = Tail(path)
    list(tail.poll())
    path.write_text("new\n")
    assert list(tail.poll()) == ["new"]


@given(st.lists(st.text(st.characters(exclude_characters="\n\r", codec="utf-8")), max_size=20), st.integers(1, 7))
def test_a_tail_gives_the_lines_however_they_are_cut(
    tmp_path_factory: pytest.TempPathFactory, lines: list[str], size: int
) -> None:
    path = tmp_path_factory.mktemp("tail") / "log"
    data = "".join(line + "\n" for line in lines).encode()
    tail, read = Tail(path), list[str]()
    for start in range(0, len(data), size):
        with path.open("ab") as file:
            file.write(data[start : start + size])
        read += tail.poll()
    assert read == lines


def test_metrics_are_filed_by_group_node_and_key(tmp_path: Path) -> None:
    (tmp_path / "my-actor-1.jsonl").write_text('{"time": 1, "x": 2}\n{"time": 2, "x": 4, "name": "a", "ok": true}\n')
    (tmp_path / "my-actor-0.jsonl").write_text('{"time": 1, "x": 10}\n')
    (tmp_path / "readme.jsonl").write_text('{"time": 1, "x": 10}\n')
    metrics = Metrics(tmp_path)
    metrics.poll()
    assert list(metrics.groups) == ["my-actor"]
    assert metrics.keys("my-actor") == ["x"]
    assert metrics.groups["my-actor"][1]["x"].latest == 4
    assert metrics.latest("x") == 7
    assert math.isnan(metrics.latest("y"))
    assert metrics.span() == (1, 2)


@pytest.mark.parametrize("line", ["{", "3", "null", '{"x": 1}', '{"time": "soon"}', "\x00\x00", ""])
def test_a_broken_line_is_counted_and_skipped(tmp_path: Path, line: str) -> None:
    (tmp_path / "a-0.jsonl").write_text(line + "\n" + json.dumps({"time": 1, "x": 1}) + "\n")
    metrics = Metrics(tmp_path)
    metrics.poll()
    assert metrics.malformed == 1
    assert metrics.groups["a"][0]["x"].latest == 1


def test_a_counter_is_that_of_the_counter_group(tmp_path: Path) -> None:
    (tmp_path / "actor-0.jsonl").write_text('{"time": 1, "steps": 99, "own": 3}\n')
    (tmp_path / "actor-1.jsonl").write_text('{"time": 1, "own": 5}\n')
    (tmp_path / "counter-0.jsonl").write_text('{"time": 1, "steps": 50}\n')
    metrics = Metrics(tmp_path)
    metrics.poll()
    steps, own = metrics.counter("steps"), metrics.counter("own")
    assert steps is not None
    assert own is not None
    assert (steps.latest, own.latest) == (50, 5)
    assert metrics.counter("none") is None


def test_a_rate_is_the_growth_over_the_last_points() -> None:
    series = Series()
    assert math.isnan(series.rate())
    for second in range(1000):
        series.append(second / 10, second * (1 if second < 500 else 3))
    assert series.rate() == pytest.approx(30, rel=0.01)


def test_a_counter_that_is_taken_back_grows_from_there() -> None:
    series = Series()
    for second, value in enumerate([0, 100, 200, 300, 240, 340]):  # a node was started again from what it had saved
        series.append(second, value)
    assert series.rate() == pytest.approx(400 / 5)
    assert series.growth(0) == 400
    assert series.growth(3.5) == 100  # a run that goes on with another, which had come further than it saved
    assert series.growth(1.5) == 300
    assert Series().growth(0) == 0


def row(time: float, value: float, steps: float | None = None, length: float = 10) -> str:
    said = {} if steps is None else {"actor_steps": steps, "episode_length": length}
    return json.dumps({"time": time, "episode_return": value, **said}) + "\n"


def metrics_of(tmp_path: Path, **files: str) -> Metrics:
    for name, text in files.items():
        (tmp_path / f"{name.replace('_', '-')}.jsonl").write_text(text)
    metrics = Metrics(tmp_path)
    metrics.poll()
    return metrics


def test_recent_returns_are_those_of_about_the_last_100_episodes(tmp_path: Path) -> None:
    # Rows of 10, 50, 20 and 40 episodes: the last three hold 100.
    rows = [row(1, -100, 100), row(2, 1, 600), row(3, 2, 800), row(4, 3, 1200)]
    metrics = metrics_of(tmp_path, actor_0="".join(rows))
    assert metrics.recent("episode_return") == (50 * 1 + 20 * 2 + 40 * 3) / 110
    assert metrics.find("episode_return")[0].counts_episodes


def test_every_actor_has_its_share_of_the_recent_returns(tmp_path: Path) -> None:
    fast = "".join(row(i, 1, 1000 * i) for i in range(1, 9))  # 100 episodes each
    slow = row(1, 0, 100) + row(2, 0, 200)  # 10 each
    assert metrics_of(tmp_path, actor_0=fast, actor_1=slow).recent("episode_return") == 100 / 120


def test_rows_that_do_not_say_how_many_episodes_they_are_count_as_one(tmp_path: Path) -> None:
    metrics = metrics_of(tmp_path, coin_0="".join(row(i, int(i >= 150)) for i in range(200)))
    assert metrics.recent("episode_return") == 0.5
    assert not metrics.find("episode_return")[0].counts_episodes
    assert math.isnan(metrics.recent("no_return"))


def test_an_actor_that_goes_on_counts_from_0_again(tmp_path: Path) -> None:
    metrics = metrics_of(tmp_path, actor_0=row(1, 0, 1000) + row(2, 1, 900))
    assert list(metrics.find("episode_return")[0].weights) == [100, 90]


def test_values_that_are_no_numbers_are_left_out_of_recent_returns(tmp_path: Path) -> None:
    metrics = metrics_of(tmp_path, coin_0=row(1, 2) + row(2, float("nan")))
    assert metrics.recent("episode_return") == 2


@given(st.lists(st.integers(1, 9), max_size=2000))
def test_no_episode_is_lost_when_the_history_is_thinned(weights: list[int]) -> None:
    series = Series()
    for index, weight in enumerate(weights):
        series.append(index, index, weight)
        assert len(series.weights) == len(series.values)
    kept = weights[: int(series.times[-1]) + 1] if weights else []
    assert sum(series.weights) == sum(kept)


@given(st.integers(0, 5000))
def test_history_is_bounded_and_keeps_the_whole_span(count: int) -> None:
    series = Series()
    for index in range(count):
        series.append(index, index)
    assert len(series.times) == len(series.values) <= 512
    assert list(series.times) == list(series.values)
    if count:
        assert series.times[0] == 0
        assert series.times[-1] >= count - 1 - 2 * max(1, count // 256)
        steps = {b - a for a, b in zip(series.times, series.times[1:], strict=False)}
        assert len(steps) <= 1  # evenly thinned
