"""What counts as a failure."""

from __future__ import annotations

import dataclasses
import traceback

import pytest

from launch.outcome import CLEAN, add_note, describe_exit, node_failed, outcome_of
from topology.errors import (
    ConnectionBroken,
    ProgramError,
    ProgramStopped,
    RemoteError,
    ReplayError,
    StoreDenied,
    StoreUnavailable,
)


def raised(error: BaseException) -> BaseException:
    try:
        raise error
    except BaseException as caught:
        return caught


def chained(outer: BaseException, inner: BaseException) -> BaseException:
    try:
        try:
            raise inner
        except BaseException:
            raise outer  # noqa: B904 - the context is the point
    except BaseException as caught:
        return caught


@pytest.mark.parametrize("error", [None, SystemExit(), SystemExit(0)])
@pytest.mark.parametrize("stopping", [True, False])
def test_clean(error: BaseException | None, stopping: bool) -> None:
    assert outcome_of(error, stopping=stopping) == CLEAN


@pytest.mark.parametrize(
    "error",
    [
        ProgramStopped("stopped"),
        ConnectionBroken("gone"),
        RemoteError("there"),
        ReplayError("the replay server was stopped"),
        chained(ValueError("while closing"), ConnectionBroken("gone")),
        ExceptionGroup("several", [ValueError("a"), ConnectionBroken("gone")]),
    ],
)
def test_a_broken_call_after_the_stop_is_a_clean_end(error: BaseException) -> None:
    assert outcome_of(error, stopping=True) == CLEAN
    assert outcome_of(error, stopping=False).failed


def test_other_errors_fail_also_after_the_stop() -> None:
    outcome = outcome_of(raised(ValueError("no\ngood")), stopping=True)
    assert (outcome.failed, outcome.exit_code, outcome.message) == (True, 1, "ValueError: no good")
    assert outcome.remote_traceback.startswith("Traceback")


def test_a_lost_peer_is_secondary() -> None:
    assert outcome_of(ConnectionBroken("gone"), stopping=False).secondary
    assert not outcome_of(ValueError("gone"), stopping=False).secondary


def test_what_would_be_raised_again_is_final() -> None:
    assert outcome_of(ProgramError("wrong settings"), stopping=False).final
    assert outcome_of(StoreDenied("wrong password"), stopping=False).final
    assert not outcome_of(StoreUnavailable("not there"), stopping=False).final
    assert not outcome_of(ValueError("no"), stopping=False).final


def test_the_stop_is_known_by_the_text_that_a_library_in_between_keeps() -> None:
    try:
        raise ProgramStopped("the program stopped")
    except ProgramStopped:
        text = traceback.format_exc()
    other = RuntimeError(f"Unknown error: {text} [[node of a graph]]")
    assert outcome_of(other, stopping=True) == CLEAN
    assert outcome_of(other, stopping=False).secondary


@pytest.mark.parametrize(("code", "text"), [(3, "it exited with code 3"), ("why", "it exited: why")])
def test_exits(code: object, text: str) -> None:
    assert outcome_of(SystemExit(code), stopping=False).message == text


def test_frames_of_ours_are_left_out() -> None:
    outcome = outcome_of(raised(ValueError("x")), stopping=False, skip_frames=5)
    assert outcome.remote_traceback.count("File ") == 1


def test_an_error_without_text_or_with_a_note() -> None:
    error = ValueError("first")
    error.add_note("a note")
    assert outcome_of(error, stopping=False).message == "ValueError: first"
    assert outcome_of(ValueError(), stopping=False).message == "ValueError"


def test_signals_have_names() -> None:
    assert describe_exit(-11) == "its process was killed by SIGSEGV"
    assert describe_exit(-9).endswith("(out of memory?)")
    assert describe_exit(-64).endswith("SIGRTMAX") or describe_exit(-64).endswith("signal 64")
    assert describe_exit(2) == "its process exited with code 2"


def test_node_failed_puts_the_traceback_last() -> None:
    error = node_failed("learner", 1, outcome_of(raised(ValueError("x")), stopping=False))
    assert (error.label, error.index, error.exit_code) == ("learner", 1, 1)
    assert str(error).startswith("Node learner/1 failed: ValueError: x\n\nTraceback")
    assert str(error).endswith("ValueError: x")


class Unprintable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


@dataclasses.dataclass(frozen=True)
class Frozen(Exception):
    code: int

    def add_note(self, note: str) -> None:
        raise RuntimeError(f"no {note}")


@pytest.mark.parametrize("error", [Unprintable(), Frozen(3)])
def test_errors_that_do_not_like_to_be_looked_at(error: Exception) -> None:
    outcome = outcome_of(raised(error), stopping=False, skip_frames=1)
    assert outcome.failed
    assert outcome.message.startswith(f"{type(error).__name__}: ")
    assert outcome.remote_traceback.startswith("Traceback")
    add_note(error, "note")


def test_the_traceback_of_groups_nested_too_deep() -> None:
    error: Exception = ValueError("inner")
    for _ in range(20_000):
        error = ExceptionGroup("outer", [error])
    outcome = outcome_of(raised(error), stopping=False)
    assert outcome.message == "ExceptionGroup: outer (1 sub-exception)"
    # How deep Python gets depends on the stack it starts from: it shows the first ten levels, or gives up.
    assert "max_group_depth" in outcome.remote_traceback or "RecursionError" in outcome.remote_traceback
    while isinstance(error, ExceptionGroup):  # or freeing them would recurse, too
        error = error.exceptions[0]


def test_a_giant_message_is_whole_in_the_traceback_only() -> None:
    outcome = outcome_of(raised(ValueError("x" * 1_000_000)), stopping=False)
    assert len(outcome.message) < 3000
    assert "1000000 characters" in outcome.message
    assert len(outcome.remote_traceback) > 1_000_000


@pytest.mark.parametrize(("code", "seen"), [(3, 3), (True, 1), (10**30, -1), (-(10**30), -1)])
def test_exit_codes_are_those_of_the_interpreter(code: int, seen: int) -> None:
    assert outcome_of(SystemExit(code), stopping=False).exit_code == seen
