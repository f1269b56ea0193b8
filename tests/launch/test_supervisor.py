"""The supervisor alone: scenarios, and whatever hypothesis thinks of."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from launch.outcome import CLEAN, Outcome
from launch.supervisor import (
    AnnounceStop,
    Check,
    Command,
    Ended,
    Event,
    Interrupt,
    Interrupted,
    Kill,
    NodeState,
    Nudge,
    RestartPolicy,
    Start,
    StopRequested,
    Supervisor,
)

FAILURE = Outcome(failed=True, message="ValueError: no", exit_code=1)
LOST_PEER = Outcome(failed=True, message="ConnectionBroken: gone", exit_code=1, secondary=True)


def make(count: int = 2, *, restarts: int = 0, notice_s: float = 10.0) -> Supervisor:
    supervisor = Supervisor.of([RestartPolicy(max_restarts=restarts)] * count, notice_s)
    assert supervisor.begin() == [Start(node) for node in range(count)]
    return supervisor


def states(supervisor: Supervisor) -> list[str]:
    return [record.state.value for record in supervisor.nodes]


def test_a_program_that_ends_by_itself() -> None:
    supervisor = make()
    assert supervisor.handle(Ended(0), 1.0) == []
    assert not supervisor.done
    assert supervisor.handle(Ended(1), 2.0) == []
    assert supervisor.done
    assert supervisor.purpose == "finished"
    assert supervisor.next_deadline is None
    assert states(supervisor) == ["finished", "finished"]


def test_the_first_failure_stops_the_program() -> None:
    supervisor = make()
    assert supervisor.handle(Ended(0, FAILURE), 1.0) == [AnnounceStop("node failed: ValueError: no")]
    assert supervisor.handle(Ended(1), 1.1) == []
    assert states(supervisor) == ["failed", "stopped"]
    assert supervisor.failures == [(0, FAILURE)]


def test_a_failure_of_the_only_node_announces_nothing() -> None:
    supervisor = make(1)
    assert supervisor.handle(Ended(0, FAILURE), 1.0) == []
    assert supervisor.done
    assert supervisor.failures


def test_a_failure_that_only_lost_its_peer_is_reported_after_the_cause() -> None:
    supervisor = make(3)
    supervisor.handle(Ended(0, LOST_PEER), 1.0)
    supervisor.handle(Ended(1, FAILURE), 1.01)
    assert [node for node, _ in supervisor.reported_failures()] == [1, 0]


def test_restarts_back_off_and_then_the_failure_counts() -> None:
    supervisor = make(1, restarts=2)
    assert supervisor.handle(Ended(0, FAILURE), 1.0) == []
    assert states(supervisor) == ["restarting"]
    assert supervisor.next_deadline == 1.1
    assert supervisor.advance(1.05) == []
    assert supervisor.advance(1.1) == [Start(0, 1)]
    supervisor.handle(Ended(0, FAILURE), 2.0)
    assert supervisor.next_deadline == 2.2
    assert supervisor.advance(2.2) == [Start(0, 2)]
    assert supervisor.nodes[0].restarts == 2
    supervisor.handle(Ended(0, FAILURE), 3.0)
    assert supervisor.done
    assert supervisor.failures == [(0, FAILURE)]


def test_what_would_fail_again_is_not_started_again() -> None:
    supervisor = make(restarts=5)
    final = Outcome(failed=True, message="ProgramError: no such network", exit_code=1, final=True)
    assert supervisor.handle(Ended(0, final), 1.0) == [AnnounceStop("node failed: ProgramError: no such network")]
    assert states(supervisor) == ["failed", "running"]


def test_a_stop_while_a_node_waits_for_its_restart() -> None:
    supervisor = make(2, restarts=1)
    supervisor.handle(Ended(0, FAILURE), 1.0)
    assert supervisor.handle(StopRequested("enough"), 1.01) == [AnnounceStop("enough")]
    assert states(supervisor) == ["stopped", "running"]
    assert not any(isinstance(command, Start) for command in supervisor.advance(5.0))
    supervisor.handle(Ended(1), 5.0)
    assert supervisor.done
    assert not supervisor.failures


def test_a_stop_goes_from_words_to_the_kill() -> None:
    supervisor = make(2)
    assert supervisor.handle(StopRequested("enough"), 0.0) == [AnnounceStop("enough")]
    assert supervisor.handle(StopRequested("again"), 0.05) == []
    assert supervisor.advance(0.1) == [Nudge(0), Nudge(1)]
    supervisor.handle(Ended(0), 0.2)
    assert supervisor.advance(1.1) == [Check(1)]
    assert supervisor.advance(9.9) == []
    assert supervisor.advance(10.0) == [Interrupt(1)]
    assert supervisor.advance(12.0) == [Kill(1)]
    assert supervisor.handle(Ended(1, Outcome(failed=True, exit_code=-9)), 12.1) == []
    assert supervisor.done
    assert not supervisor.failures  # late, but stopped on purpose
    assert [record.late for record in supervisor.nodes] == [False, True]
    assert supervisor.reason == "enough"


def test_a_process_that_even_the_kill_does_not_end_is_given_up() -> None:
    supervisor = make(1, notice_s=0.0)
    supervisor.handle(StopRequested("enough"), 0.0)
    commands: list[Command] = []
    while not supervisor.done:
        assert supervisor.next_deadline is not None
        commands += supervisor.advance(supervisor.next_deadline)
    assert commands == [Nudge(0), Check(0), Interrupt(0), Kill(0)]
    assert supervisor.next_deadline is None


def test_ctrl_c_once_is_a_stop_and_twice_a_kill() -> None:
    supervisor = make(1)
    assert supervisor.handle(Interrupted(), 0.0) == [AnnounceStop("Ctrl-C")]
    assert supervisor.handle(Interrupted(), 0.1) == [Kill(0)]
    assert supervisor.handle(Interrupted(), 0.2) == []
    assert supervisor.purpose == "stopped"


def test_ctrl_c_during_another_stop_does_not_kill() -> None:
    supervisor = make(1)
    supervisor.handle(StopRequested("a node asked", purpose="finished"), 0.0)
    assert supervisor.handle(Interrupted(), 0.1) == []
    assert supervisor.purpose == "finished"


def test_a_real_failure_after_the_stop_counts() -> None:
    supervisor = make(1)
    supervisor.handle(StopRequested("enough"), 0.0)
    supervisor.handle(Ended(0, FAILURE), 0.1)
    assert supervisor.failures == [(0, FAILURE)]


def test_a_call_that_fails_before_its_node_hears_of_the_stop_is_a_clean_end() -> None:
    supervisor = make(2)
    supervisor.handle(StopRequested("enough"), 0.0)
    supervisor.handle(Ended(0, LOST_PEER), 0.1)
    supervisor.handle(Ended(1), 0.2)
    assert states(supervisor) == ["stopped", "stopped"]
    assert not supervisor.failures


def test_a_second_end_of_one_node_means_nothing() -> None:
    supervisor = make(2)
    supervisor.handle(Ended(0), 0.0)
    assert supervisor.handle(Ended(0, FAILURE), 0.1) == []
    assert not supervisor.failures


NODES = 3
events = st.one_of(
    st.builds(Ended, st.integers(0, NODES - 1), st.sampled_from([CLEAN, FAILURE, LOST_PEER])),
    st.builds(StopRequested, st.just("asked")),
    st.builds(Interrupted),
)


@given(st.lists(st.tuples(st.floats(0.0, 3.0), st.none() | events), max_size=40), st.integers(0, 2), st.floats(0, 12))
def test_whatever_happens(steps: list[tuple[float, Event | None]], restarts: int, notice_s: float) -> None:
    supervisor = make(NODES, restarts=restarts, notice_s=notice_s)
    commands: list[Command] = []
    now, starts = 0.0, [1] * NODES
    for pause, event in steps:
        now += pause
        before = [record.state for record in supervisor.nodes]
        new = supervisor.advance(now) if event is None else supervisor.handle(event, now)
        for node in (command.node for command in new if isinstance(command, Start)):
            assert before[node] is NodeState.RESTARTING
            starts[node] += 1
        commands += new
    assert sum(isinstance(command, AnnounceStop) for command in commands) <= 1
    assert all(count <= 1 + restarts for count in starts)
    kills = [command.node for command in commands if isinstance(command, Kill)]
    assert len(kills) == len(set(kills))
    if supervisor.failures and not supervisor.done:
        assert supervisor.stopping
    supervisor.handle(StopRequested("the end"), now)
    for _ in range(10):  # a stop ends every program, whatever its nodes do
        if (deadline := supervisor.next_deadline) is None:
            break
        supervisor.advance(max(now, deadline))
    assert supervisor.done
    assert supervisor.next_deadline is None
