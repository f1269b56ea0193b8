"""What counts as a failure."""

from __future__ import annotations

import pytest

from launch.outcome import CLEAN, describe_exit, node_failed, outcome_of
from topology.errors import ConnectionBroken, ProgramStopped, RemoteError, ReplayError


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
