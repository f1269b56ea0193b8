"""What is said at the end, and the learning curve."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.figure import Figure
from rich.console import Console

from launch.curve import Curve, draw_text, find_curves, short_number
from launch.live_view import progress_line
from launch.run_directory import RunDirectory
from launch.summary import as_json, print_summary, save_curve
from launch.watch import RunWatch

STARTED = 1_700_000_000.0
METRICS: dict[str, list[dict[str, Any]]] = {
    "counter-0": [
        {"time": STARTED + i, "actor_steps": 100 * i, "learner_steps": i, "actor_episodes": i} for i in range(11)
    ],
    "actor-0": [{"time": STARTED + i / 2, "episode_return": i, "actor_steps": 3 * i} for i in range(20)],
    "evaluator-0": [
        {"time": STARTED + 1, "evaluator_return": -1.0, "actor_steps": 90},
        {"time": STARTED + 5, "evaluator_return": 0.95, "actor_steps": 480},
        {"time": STARTED + 9, "evaluator_return": 0.9, "actor_steps": 880},
    ],
}


def watch_of(directory: RunDirectory) -> RunWatch:
    watch = RunWatch(directory)
    watch.poll()
    return watch


def summary_of(watch: RunWatch, width: int = 100) -> str:
    console = Console(file=io.StringIO(), width=width)
    print_summary(watch, console)
    return console.file.getvalue()  # type: ignore[attr-defined,no-any-return]


def test_the_summary_says_how_it_went_and_where_everything_is(make_run: Callable[..., RunDirectory]) -> None:
    directory = make_run(state="finished", ended=STARTED + 10, metrics=METRICS, logs={"actor-0": "ERROR x\n"})
    text = summary_of(watch_of(directory))
    rows = dict(line.strip().split("  ", 1) for line in text.splitlines() if "  " in line.strip())
    rows = {name: value.strip() for name, value in rows.items()}
    assert rows["run"] == "toy-1"
    assert rows["state"] == "finished after 0:10"
    assert rows["actor steps"] == "1,000  (100/s)"
    assert rows["actor episodes"] == "10  (1/s)"
    assert rows["evaluator return"] == "0.9  (best 0.95 at 480 actor steps)"
    assert rows["actor episode return"] == "9.5  (mean of last 100)"
    assert rows["warnings"] == "1 in the logs"
    assert rows["curve"] == str(directory.path / "curve.png")
    assert rows["logs"] == str(directory.logs)
    assert (directory.path / "curve.png").read_bytes().startswith(b"\x89PNG")


def test_paths_stay_whole_on_a_narrow_terminal(make_run: Callable[..., RunDirectory]) -> None:
    directory = make_run(state="finished", ended=STARTED + 10, metrics=METRICS)
    assert str(directory.logs) in summary_of(watch_of(directory), width=40)


def test_a_run_that_measured_nothing_has_a_summary(make_run: Callable[..., RunDirectory]) -> None:
    directory = make_run(state="failed", ended=STARTED + 1)
    text = summary_of(watch_of(directory))
    assert "failed after 0:01" in text
    assert "curve" not in text
    assert "metrics" not in text
    assert not (directory.path / "curve.png").exists()


def test_a_curve_that_cannot_be_written_is_said(make_run: Callable[..., RunDirectory]) -> None:
    directory = make_run(state="finished", ended=STARTED + 10, metrics=METRICS)
    (directory.path / "curve.png").mkdir()
    assert "not written: Is a directory" in summary_of(watch_of(directory))


def test_curves_are_measured_at_the_steps_the_node_names_or_the_counter_had(
    make_run: Callable[..., RunDirectory],
) -> None:
    evaluator, actor = find_curves(watch_of(make_run(metrics=METRICS)).metrics)
    assert (evaluator.name, evaluator.measured, evaluator.x) == ("evaluator return", True, (90, 480, 880))
    assert (actor.name, actor.measured, actor.x_name) == ("actor episode return", False, "actor steps")
    assert actor.x == tuple(50 * i for i in range(20))


def test_what_was_measured_last_at_one_step_is_what_the_summary_says(make_run: Callable[..., RunDirectory]) -> None:
    returns = (-1.0, 0.9, 0.4)  # the last is the final evaluation, of more episodes
    rows = [{"time": STARTED + i, "evaluator_return": y, "actor_steps": 64 * (i > 0)} for i, y in enumerate(returns)]
    watch = watch_of(make_run(state="finished", ended=STARTED + 3, metrics={"evaluator-0": rows}))
    assert "evaluator return  0.4  (best 0.9 at 64 actor steps)" in summary_of(watch)


def test_a_program_that_counts_no_steps_has_a_curve_over_time(make_run: Callable[..., RunDirectory]) -> None:
    metrics = {"trainer-0": [{"time": STARTED + i, "mean_reward": float("nan") if i == 1 else i} for i in range(4)]}
    (curve,) = find_curves(watch_of(make_run(metrics=metrics)).metrics)
    assert (curve.name, curve.x_name, curve.x, curve.y) == ("trainer mean reward", "seconds", (0, 2, 3), (0, 2, 3))


def test_the_drawn_curve_ends_with_the_number_of_the_summary(make_run: Callable[..., RunDirectory]) -> None:
    metrics = {
        f"actor-{actor}": [
            {"time": STARTED + i + actor / 9, "episode_return": i * actor, "episode_length": 5, "actor_steps": 200 * i}
            for i in range(1, 30)
        ]
        for actor in range(3)
    }
    watch = watch_of(make_run(state="finished", ended=STARTED + 30, metrics=metrics))
    (curve,) = find_curves(watch.metrics)
    assert curve.recent == curve.running[-1] == 29.0  # 40 episodes a row: the last of each actor
    assert curve.title == "actor episode return (mean of 100 episodes)"
    assert "actor episode return  29  (mean of 100 episodes)" in summary_of(watch)
    assert "episode return 29 (mean of 100 episodes)" in progress_line(watch)


def test_many_values_at_one_place_are_drawn_as_their_mean() -> None:
    points = [(0, 0), (100, 5), (100, 7), (200, 1)]
    assert curve_of([(float(x), float(y)) for x, y in points]).drawn().y == (0, 6, 1)
    near = Curve(name="r", measured=False, x_name="s", x=(0, 1000, 1001, 2000), y=(0, 5, 7, 1), running=(0, 4, 8, 2))
    assert (near.drawn().x, near.drawn().y) == ((0, 1000.5, 2000), (0, 6, 2))


def test_the_picture_says_what_it_shows(make_run: Callable[..., RunDirectory], monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[Any] = []
    monkeypatch.setattr(Figure, "savefig", lambda figure, *_, **__: drawn.append(figure.axes[0]))
    watch = watch_of(make_run(state="finished", ended=STARTED + 10, metrics=METRICS))
    save_curve(watch, ("catch", "seed 3"))
    save_curve(watch)
    assert drawn[0].get_title(loc="left") == "toy · catch · seed 3"
    assert drawn[0].get_ylabel() == "return"  # of both
    assert [text.get_text() for text in drawn[0].get_legend().get_texts()] == [
        "actor episode return (mean of last 100)",
        "evaluator return",
    ]
    assert drawn[1].get_title(loc="left") == "toy · toy-1"


def test_the_png_of_one_point_is_drawn(make_run: Callable[..., RunDirectory]) -> None:
    metrics = {"evaluator-0": [{"time": STARTED, "evaluator_return": 1.0}]}
    watch = watch_of(make_run(state="finished", ended=STARTED + 1, metrics=metrics))
    assert save_curve(watch) == watch.directory.path / "curve.png"


def test_the_json_of_a_run_is_json(make_run: Callable[..., RunDirectory]) -> None:
    metrics = {**METRICS, "learner-0": [{"time": STARTED, "loss": float("nan")}]}
    value = json.loads(json.dumps(as_json(watch_of(make_run(metrics=metrics))), allow_nan=False))
    assert value["metrics"]["counter"]["actor_steps"] == 1000
    assert value["metrics"]["learner"]["loss"] is None
    assert value["progress"] is None
    assert value["state"] == "running"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0"), (1.0, "1"), (0.95, "0.95"), (12.34, "12.3"), (123.4, "123.4"), (1234.5, "1,234"), (2.5e6, "2.5M"),
        (3e9, "3G"), (3e-5, "3.0e-5"), (-0.5, "-0.5"), (float("nan"), "–"), (float("inf"), "inf"), (1e15, "1.0e15"),
    ],
)  # fmt: skip
def test_short_numbers(value: float, text: str) -> None:
    assert short_number(value) == text


def curve_of(points: list[tuple[float, float]]) -> Curve:
    points = sorted(points)
    x, y = tuple(x for x, _ in points), tuple(y for _, y in points)
    return Curve(name="return", measured=True, x_name="actor steps", x=x, y=y)


def test_a_rising_line_is_drawn_from_corner_to_corner() -> None:
    assert draw_text(curve_of([(0, 0), (100, 1)]), width=4, height=2).splitlines() == [
        "      return",
        "1.00 ┤⠀⠀⡠⠊",
        "0.00 ┤⡠⠊⠀⠀",
        "     └────",
        "      0actor steps100",
    ]


@given(
    st.lists(st.tuples(st.floats(0, 1e9), st.floats(-1e6, 1e6)), min_size=1, max_size=50),
    st.integers(1, 40),
    st.integers(1, 12),
)
def test_every_curve_can_be_drawn(points: list[tuple[float, float]], width: int, height: int) -> None:
    lines = draw_text(curve_of(points), width=width, height=height).splitlines()
    assert len(lines) == height + 3
    assert len({len(line) for line in lines[1 : height + 2]}) == 1


def test_the_live_line_and_the_summary_show_the_same_number(make_run: Callable[..., RunDirectory]) -> None:
    # More points than a series keeps, and the newest are the largest.
    records = [{"time": STARTED + i, "actor_steps": i, "episode_return": int(i > 1950)} for i in range(2000)]
    watch = watch_of(make_run(state="finished", ended=STARTED + 2000, metrics={"coin-0": records}))
    assert "episode return 0.49 (mean of last 100)" in progress_line(watch)
    assert "coin episode return  0.49  (mean of last 100)" in summary_of(watch)
