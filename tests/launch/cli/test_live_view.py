"""The view of a run, on a terminal and elsewhere."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from launch.live_view import PlainView, RichView, duration, follow, headline, make_view, progress_line, render
from launch.run_directory import RunDirectory
from launch.summary import print_summary
from launch.watch import RunWatch
from topology.clock import SystemClock
from topology.errors import LaunchError

STARTED = 1_700_000_000.0
METRICS: dict[str, list[dict[str, Any]]] = {
    "counter-0": [
        {"time": STARTED + i, "actor_steps": 100 * i, "learner_steps": 10 * i, "progress": i / 100} for i in range(41)
    ],
    "actor-0": [{"time": STARTED + i, "episode_return": 0.5, "steps_per_second": 25.0} for i in range(40)],
    "evaluator-0": [{"time": STARTED + i, "evaluator_return": i / 40, "actor_steps": 100 * i} for i in range(0, 40, 4)],
    "learner-0": [{"time": STARTED + 40, "loss": 0.0123, "replay_size": 4000}],
}
NODES = (("counter", 0, "running"), ("actor", 0, "running"), ("actor", 1, "failed"), ("learner", 0, "running"))


class At:
    """A clock that stands still."""

    def __init__(self, seconds: float) -> None:
        self.now = STARTED + seconds

    def time(self) -> float:
        return self.now

    monotonic = time

    def sleep(self, seconds: float) -> None:
        raise AssertionError("nothing here sleeps")

    wait_for = SystemClock.wait_for


def watch_of(directory: RunDirectory, seconds: float = 40) -> RunWatch:
    watch = RunWatch(directory, clock=At(seconds))  # type: ignore[arg-type]
    watch.poll()
    return watch


def drawn(watch: RunWatch, width: int = 100, height: int = 40) -> str:
    console = Console(file=io.StringIO(), width=width, height=height, color_system=None)
    console.print(render(watch, width=width, height=height))
    return console.file.getvalue()  # type: ignore[attr-defined,no-any-return]


def test_the_line_says_everything_that_matters(make_run: Callable[..., RunDirectory]) -> None:
    watch = watch_of(make_run(metrics=METRICS, nodes=NODES, logs={"actor-0": "hello\nWARNING: slow\n"}))
    assert progress_line(watch) == (
        "   0:40 running 40% | left 1:00 | actor steps 4,000 (100/s) | learner steps 400 (10/s) | evaluator return 0.9"
        " | episode return 0.5 (mean of last 100) | replay size 4,000 | nodes 3/4 running, 1 failed | warnings 1"
    )


def test_the_picture_has_the_figures_the_groups_the_curve_and_the_warnings(
    make_run: Callable[..., RunDirectory],
) -> None:
    logs = {"actor-0": "hello\n\x1b[31mWARNING:root: slow\x1b[0m\n", "learner-0": "ValueError: broken [bold]\nnoise\n"}
    text = drawn(watch_of(make_run(metrics=METRICS, nodes=NODES, logs=logs)))
    for part in ("toy", "● running", "40%", "0:40 elapsed", "~1:00 left", "4,000", "100/s", "best 0.9", "loss 0.0123"):
        assert part in text
    assert "actor/0 | WARNING:root: slow" in text
    assert "learner/0 | ValueError: broken [bold]" in text
    assert "3/4" not in text  # by group in the picture
    assert "1/2 running, 1 failed" in text
    assert "hello" not in text
    assert "⠀" in text  # the curve
    assert "steps_per_second 25" in text


@pytest.mark.parametrize(("width", "height"), [(100, 40), (60, 16), (30, 10)])
def test_no_line_is_wider_than_the_terminal(make_run: Callable[..., RunDirectory], width: int, height: int) -> None:
    text = drawn(watch_of(make_run(metrics=METRICS, nodes=NODES)), width, height)
    assert max(map(len, text.splitlines())) <= width


@pytest.mark.parametrize("width", [120, 80, 60, 40])
def test_what_does_not_fit_is_left_out_and_nothing_is_cut(make_run: Callable[..., RunDirectory], width: int) -> None:
    learner = {"time": STARTED + 40, "weights_age_s": 0.123, "loss": 0.0123, "steps_per_second": 25.0, "norm": 123.4}
    text = drawn(watch_of(make_run(metrics={**METRICS, "learner-0": [learner]}, nodes=NODES)), width)
    assert "…" not in text
    assert ("loss 0.0123" in text) == (width > 40)
    assert ("weights_age_s" in text) == (width == 120)  # the least important
    assert "40%  0:40 elapsed  ~1:00 left" in text
    assert "actor steps" in text
    assert ("episode return" in text) == (width > 60)
    assert max(map(len, text.splitlines())) <= width


def test_at_the_end_all_nodes_have_ended_and_nothing_old_is_shown(make_run: Callable[..., RunDirectory]) -> None:
    nodes = (("counter", 0, "finished"), ("actor", 0, "stopped"), ("actor", 1, "stopped"))
    watch = watch_of(make_run(state="finished", ended=STARTED + 40, metrics=METRICS, nodes=nodes))
    assert progress_line(watch).endswith("| nodes all 3 ended")
    assert "2 ended" in drawn(watch)
    assert "replay size" not in drawn(watch) + progress_line(watch)
    nodes = (("counter", 0, "failed"), ("actor", 0, "stopped"))
    watch = watch_of(make_run("toy-2", state="failed", ended=STARTED + 40, nodes=nodes))
    assert progress_line(watch).endswith("| nodes 1 failed, 1 ended")


def test_a_run_that_goes_on_has_its_own_rates_and_progress(make_run: Callable[..., RunDirectory]) -> None:
    earlier = {**METRICS["counter-0"][-1], "time": STARTED - 100, "progress": 1.0}
    size = {"time": STARTED - 100, "replay_size": 4000}
    directory = make_run(metrics={"counter-0": [earlier], "learner-0": [size]})
    assert progress_line(watch_of(directory, 1)) == (
        "   0:01 running | actor steps 4,000 | learner steps 400 | nodes 2/2"
    )
    rows = [
        {"time": STARTED + i, "actor_steps": 4000 + 100 * i, "learner_steps": 400, "progress": 0.5 + i / 100}
        for i in range(1, 11)
    ]
    text = "".join(json.dumps(row) + "\n" for row in [earlier, *rows])
    directory.metrics_path("counter", 0).write_text(text)
    line = progress_line(watch_of(directory, 10))
    assert "running 60% | left 0:40 | actor steps 5,000 (100/s)" in line
    directory.update_state(state="finished", ended=STARTED + 10)
    console = Console(file=io.StringIO(), width=100)
    print_summary(watch_of(directory), console)
    assert "5,000  (100/s)" in console.file.getvalue()  # type: ignore[attr-defined]


def test_other_agents_have_other_groups_and_keys(make_run: Callable[..., RunDirectory]) -> None:
    metrics = {"trainer-0": [{"time": STARTED, "kl": 0.5, "reward": 3}], "executor-0": [{"time": STARTED, "fps": 60}]}
    watch = watch_of(make_run(metrics=metrics, nodes=(("trainer", 0, "running"), ("executor", 0, "running"))))
    text = drawn(watch)
    assert headline(watch) == []
    assert "trainer" in text
    assert "kl 0.5   reward 3" in text
    assert "fps 60" in text
    assert progress_line(watch) == "   0:40 running | nodes 2/2"


def test_a_run_without_metrics_is_shown(make_run: Callable[..., RunDirectory]) -> None:
    watch = watch_of(make_run(), seconds=5)
    assert "no metrics yet" in drawn(watch)
    assert progress_line(watch) == "   0:05 running | nodes 2/2"


def test_a_run_without_a_launcher_is_lost(make_run: Callable[..., RunDirectory]) -> None:
    watch = watch_of(make_run(pid=2**22 + 1, metrics=METRICS), seconds=9999)
    assert watch.state["state"] == "lost"
    assert watch.ended
    assert watch.elapsed_s == 40  # until the last sign of life


def test_an_ended_run_takes_no_longer(make_run: Callable[..., RunDirectory]) -> None:
    watch = watch_of(make_run(state="finished", ended=STARTED + 7, metrics=METRICS), seconds=9999)
    assert watch.elapsed_s == 7
    assert "left" not in progress_line(watch)


def test_what_is_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(LaunchError, match="is not the directory of a run"):
        RunWatch(RunDirectory(tmp_path))


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "0:00"), (59.6, "1:00"), (725, "12:05"), (3723, "1:02:03"), (float("nan"), "–")]
)
def test_durations(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_a_pipe_gets_lines_without_control_characters(make_run: Callable[..., RunDirectory]) -> None:
    stream = io.StringIO()
    view = make_view(Console(file=stream))
    assert isinstance(view, PlainView)
    view.show(watch_of(make_run(metrics=METRICS, logs={"actor-0": "ERROR \x1b[2J\n"})))
    view.close()
    assert stream.getvalue().count("\n") == 1
    assert all(character.isprintable() for character in stream.getvalue().rstrip("\n"))


def test_a_terminal_gets_one_picture_that_is_redrawn(make_run: Callable[..., RunDirectory]) -> None:
    stream = io.StringIO()
    view = make_view(Console(file=stream, force_terminal=True, width=80, height=24))
    assert isinstance(view, RichView)
    watch = watch_of(make_run(metrics=METRICS))
    view.show(watch)
    view.show(watch)
    view.close()
    view.close()
    assert "\x1b[1A" in stream.getvalue()  # went up again, over its first picture
    assert "Ctrl-C stops the run" in stream.getvalue()


def test_following_shows_until_the_end_and_once_more(make_run: Callable[..., RunDirectory]) -> None:
    shown: list[str] = []
    waited: list[float] = []
    answers = iter([False, False, True])
    clock = At(0)

    def wait(timeout_s: float) -> bool:
        waited.append(timeout_s)
        clock.now += timeout_s
        return next(answers)

    watch = RunWatch(make_run(metrics=METRICS), clock=clock)  # type: ignore[arg-type]
    follow(watch, PlainView(shown.append), wait, clock=clock)  # type: ignore[arg-type]
    assert waited == [0, 5, 5]
    assert [line.split()[0] for line in shown] == ["0:00", "0:05", "0:10"]


def test_who_is_started_again_is_told_once_each_time(make_run: Callable[..., RunDirectory]) -> None:
    directory = make_run(state="finished", ended=STARTED + 10)
    shown: list[str] = []
    watch, view = RunWatch(directory), PlainView(shown.append)
    show = lambda: follow(watch, view, lambda _: True)  # noqa: E731
    show()
    for restarts in (1, 1, 3):
        (first, second) = directory.read_state()["nodes"]
        directory.update_state(nodes=[{**first, "restarts": restarts, "failure": "StoreFull: no room"}, second])
        show()
    assert [line for line in shown if "counter/0" in line] == [
        "counter/0 failed and was started again (once): StoreFull: no room",
        "counter/0 failed and was started again (3 times): StoreFull: no room",
    ]
    console = Console(file=io.StringIO(), width=100)
    print_summary(watch, console)
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert "started again     counter/0 3 times: StoreFull: no room" in text


def test_what_nodes_print_is_shown_of_a_program_that_measures_nothing(make_run: Callable[..., RunDirectory]) -> None:
    shown: list[str] = []
    clock = At(0)
    directory = make_run(logs={"consumer-0": "one\n"})
    log = directory.log_path("consumer", 0)

    def wait(timeout_s: float) -> bool:
        clock.now += timeout_s
        if clock.now == STARTED + 10:
            log.write_text("one\nthe sum is 30\n")
        return clock.now >= STARTED + 10

    watch = RunWatch(directory, clock=clock)  # type: ignore[arg-type]
    follow(watch, PlainView(shown.append), wait, output=True, clock=clock)  # type: ignore[arg-type]
    assert [line.strip() for line in shown] == [
        "0:00 running | nodes 2/2",
        "[consumer/0] one",
        "0:05 running | nodes 2/2",
        "[consumer/0] the sum is 30",
        "0:10 running | nodes 2/2",
    ]


def test_of_a_program_that_measures_something_nothing_else_is_shown(make_run: Callable[..., RunDirectory]) -> None:
    shown: list[str] = []
    watch = watch_of(make_run(metrics=METRICS, logs={"actor-0": "hello\n"}), seconds=40)
    follow(watch, PlainView(shown.append), lambda _: True, output=True)
    assert len(shown) == 1


def test_of_a_program_that_measures_something_a_pipe_gets_the_warnings_once(
    make_run: Callable[..., RunDirectory],
) -> None:
    text = "hello\nWARNING: waits for room\nTraceback (most recent call last):\n  at\nValueError: no\n"
    directory = make_run(metrics=METRICS, logs={"actor-0": text})
    watch = watch_of(directory)
    shown: list[str] = []
    ended = iter([False, True])
    follow(watch, PlainView(shown.append), lambda _: next(ended), output=True)
    assert [line for line in shown if line.startswith("[")] == ["[actor/0] WARNING: waits for room"]
    resumed: list[str] = []
    watch = watch_of(directory)
    watch.skip_output()
    directory.log_path("actor", 0).write_text(f"{text}ERROR: new\n")
    follow(watch, PlainView(resumed.append), lambda _: True, output=True)
    assert [line for line in resumed if line.startswith("[")] == ["[actor/0] ERROR: new"]
    silent: list[str] = []  # where nodes print into the terminal themselves
    follow(watch_of(directory), PlainView(silent.append), lambda _: True)
    assert len(silent) == 1


def test_a_picture_stays_below_the_lines_of_nodes() -> None:
    stream = io.StringIO()
    view = make_view(Console(file=stream, force_terminal=True, width=80, height=24))
    view.write("[consumer/0] [red]the sum is 30")
    view.close()
    assert "[consumer/0] [red]the sum is 30\n" in stream.getvalue()
