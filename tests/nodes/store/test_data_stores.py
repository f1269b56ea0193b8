"""What every data store must do: one suite, over all of them."""

from __future__ import annotations

import itertools
import pickle
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from topology.clock import SYSTEM_CLOCK, Clock
from topology.context import NodeContext, bind_context
from topology.errors import (
    LeaseHeld,
    LeaseLost,
    PoliciesFinished,
    PolicyNotFound,
    ProgramStopped,
    StoreClosed,
    StoreDataError,
    StoreDeadlineExceeded,
)
from topology.nodes.store.policies import DataStore, Lease, open_data_store
from topology.nodes.store.record_store import RecordStore
from topology.testing import Gate, ManualClock, within

KINDS = ["directory", "memory", "s3", "redis"]
DEADLINE_S = 30.0
FAST = {"poll_s": (0.001, 0.02)}

_names = itertools.count()

Opener = Callable[..., RecordStore]


@pytest.fixture(scope="module", params=KINDS)
def place(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, dict[str, Any]]:
    """Where stores of this kind lie, and how they are opened."""
    folder: Path = tmp_path_factory.mktemp("stores")
    if request.param == "directory":
        return str(folder), {**FAST}
    if request.param == "memory":
        pytest.importorskip("fsspec")
        return f"memory://{folder.name}", {**FAST}
    if request.param == "redis":
        return request.getfixturevalue("shared_redis").url, {}
    server = request.getfixturevalue("s3_server")
    server.make_bucket("bucket-of-stores")
    import aiobotocore.session

    # To read the description of S3 takes longer than a test; it does not pickle.
    return "s3://bucket-of-stores", {**FAST, **server.options, "session": aiobotocore.session.get_session()}


@pytest.fixture
def opener(place: tuple[str, dict[str, Any]]) -> Iterator[Opener]:
    """Opens one store of this test again and again; closes all at the end."""
    root, fixed = place
    name = f"store{next(_names)}"
    opened: list[DataStore] = []

    def open_again(**options: Any) -> RecordStore:
        where = f"{root}&name={name}" if root.endswith("?db=0") else f"{root}/{name}"
        store = open_data_store(where, **{**fixed, **options})
        assert isinstance(store, RecordStore)
        opened.append(store)
        return store

    yield open_again
    for store in opened:
        store.close()


def weights(value: float) -> dict[str, Any]:
    return {"w": np.full((3, 4), value, np.float32), "b": np.full(2, value)}


def value_of(arrays: Any) -> float:
    values = {float(each) for array in arrays.values() for each in np.ravel(array)}
    assert len(values) == 1, f"a policy of parts of several: {values}"
    return values.pop()


# --- saving and loading -----------------------------------------------------------------------------------------------


def test_nothing_is_there_at_first(opener: Opener) -> None:
    store = opener()
    assert (store.newest(), store.state_number(), store.finished(), store.load_state()) == (-1, -1, None, None)
    with pytest.raises(PolicyNotFound, match="no policy has been saved"):
        store.load()


def test_a_policy_comes_back_as_it_was(opener: Opener) -> None:
    arrays = {
        "params/w": np.arange(12.0).reshape(3, 4).T,
        "scalar": np.float32(3.5),
        "empty": np.zeros((0, 5), np.int8),
        "flags": np.array([True, False]),
        "large": np.random.default_rng(0).integers(0, 255, 300_000, np.uint8),
    }
    meta = {"steps": 2**40, "name": "ü", "loss": 0.25, "done": False, "none": None}
    assert opener().save(arrays, meta, state={"opt": np.ones(3)}) == 0
    policy = opener().load()
    assert policy.number == 0
    assert policy.meta == meta
    assert policy.arrays.keys() == arrays.keys()
    for name, array in arrays.items():
        np.testing.assert_array_equal(policy.arrays[name], array)
        assert policy.arrays[name].dtype == np.asarray(array).dtype
        assert not policy.arrays[name].flags.writeable
    state = opener().load_state(0)
    assert state is not None
    np.testing.assert_array_equal(state["opt"], np.ones(3))


def test_numbers_grow_by_one_also_with_a_restarted_writer(opener: Opener) -> None:
    for number in range(3):
        store = opener()
        with store.lease("trainer", 60.0) as lease:
            assert store.save(weights(number), lease=lease) == number
        assert store.newest() == number
        assert value_of(store.load().arrays) == number


def test_a_writer_killed_with_its_lease_is_started_again_at_once(opener: Opener) -> None:
    before, after = opener(), opener()
    killed = before.lease("trainer", 1e6)
    before.save(weights(0), lease=killed)
    again = after.lease("trainer", 1e6)
    assert after.save(weights(1), lease=again) == 1
    with pytest.raises(LeaseLost):
        before.save(weights(2), lease=killed)
    assert after.newest() == 1


def test_what_cannot_be_saved_is_refused_and_leaves_nothing(opener: Opener) -> None:
    store = opener()
    with pytest.raises(TypeError):
        store.save({"w": np.array([object()])})
    with pytest.raises(TypeError):
        store.save(weights(0), {"list": [1]})  # type: ignore[dict-item]
    with pytest.raises(TypeError):
        store.save(weights(0), state={"w": np.array([object()])})
    assert store.newest() == -1
    assert not store._medium.leftovers()


def test_old_policies_go_and_the_newest_with_a_state_stays(opener: Opener) -> None:
    store = opener(keep=2)
    for number in range(6):
        store.save(weights(number), state={"n": np.array([number])} if number in {0, 2} else None)
    with pytest.raises(PolicyNotFound, match="there are 2, 4, 5"):
        store.load(3)
    with pytest.raises(PolicyNotFound, match="not been saved yet"):
        store.load(6)
    assert [value_of(store.load(number).arrays) for number in (2, 4, 5)] == [2, 4, 5]
    state = store.load_state()
    assert state is not None
    assert (store.state_number(), state["n"].tolist()) == (2, [2])
    assert store.load_state(5) is None
    if not isinstance(store._medium.leftovers(), list) or store._medium.leftovers():
        assert len(store._medium.leftovers()) == 4  # three policies and a state


def test_two_writers_without_leases_each_get_numbers_of_their_own(opener: Opener) -> None:
    stores = [opener(keep=100) for _ in range(2)]

    def save(which: int) -> list[int]:
        return [stores[which].save(weights(which)) for _ in range(5)]

    with ThreadPoolExecutor(2) as pool:
        numbers = list(pool.map(save, range(2)))
    assert sorted(numbers[0] + numbers[1]) == list(range(10))
    reader = opener()
    for which, its in enumerate(numbers):
        assert {value_of(reader.load(number).arrays) for number in its} == {which}


def test_a_store_pickles_and_connects_anew(opener: Opener, place: tuple[str, dict[str, Any]]) -> None:
    store = opener(**({"session": None} if "session" in place[1] else {}))
    store.save(weights(7))
    with pickle.loads(pickle.dumps(store)) as copy:
        assert value_of(copy.load().arrays) == 7
    assert "secret" not in repr(store)


def test_a_closed_store_says_so(opener: Opener) -> None:
    store = opener()
    store.close()
    store.close()
    with pytest.raises(StoreClosed):
        store.newest()
    with pytest.raises(StoreClosed):
        store.save(weights(0))


# --- readers that lose a race -----------------------------------------------------------------------------------------


def when_first_read(store: RecordStore, monkeypatch: pytest.MonkeyPatch, act: Callable[[], object]) -> None:
    """Calls `act` after the store has chosen a policy, before it reads the bytes."""
    get, acts = store._medium.get, [act]

    def get_late(name: str) -> Any:
        if acts:
            acts.pop()()
        return get(name)

    monkeypatch.setattr(store._medium, "get", get_late)


def test_a_reader_whose_policy_is_removed_loads_the_next_newest(opener: Opener, monkeypatch: Any) -> None:
    reader, writer = opener(), opener(keep=1)
    writer.save(weights(0))
    when_first_read(reader, monkeypatch, lambda: [writer.save(weights(n)) for n in (1, 2)])
    policy = reader.wait_newer(-1, timeout_s=DEADLINE_S)
    assert (policy.number, value_of(policy.arrays)) == (2, 2)


def test_a_reader_of_one_policy_that_is_removed_is_told(opener: Opener, monkeypatch: Any) -> None:
    reader, writer = opener(), opener(keep=1)
    writer.save(weights(0))
    when_first_read(reader, monkeypatch, lambda: writer.save(weights(1)))
    with pytest.raises(PolicyNotFound, match="policy 0 is not there any more"):
        reader.load(0)


def test_a_reader_that_has_begun_keeps_what_it_reads_while_enough_are_kept(opener: Opener, monkeypatch: Any) -> None:
    reader, writer = opener(), opener(keep=3)
    writer.save(weights(0))
    when_first_read(reader, monkeypatch, lambda: [writer.save(weights(n)) for n in (1, 2)])
    assert value_of(reader.load().arrays) == 0


def test_bytes_that_were_changed_or_removed_are_noticed(opener: Opener) -> None:
    store = opener()
    store.save(weights(0))
    (name,) = store._register.read().blob_names()
    data = bytes(store._medium.get(name))
    store._medium.delete([name])
    with pytest.raises(StoreDataError, match="somebody else has removed it"):
        store.load()
    store._medium.put(name, [data[:-1] + bytes([data[-1] ^ 1])])
    with pytest.raises(StoreDataError, match="damaged"):
        store.load()
    assert store.save(weights(1)) == 1
    assert value_of(store.load().arrays) == 1


def test_a_record_of_somebody_else_is_refused(opener: Opener) -> None:
    store = opener()
    for revision, record in enumerate([b"\x80\x04garbage", b'{"format": "topology data store 9"}', b"[]", b"{}"], 1):
        assert store._medium.write(revision, record, [])
        with pytest.raises(StoreDataError):
            store.newest()


# --- the lease --------------------------------------------------------------------------------------------------------


def watch_it_end(store: RecordStore, clock: ManualClock, owner: str) -> Lease:
    """Takes the lease of another, of 10 s, which is not renewed."""
    with pytest.raises(LeaseHeld):
        store.lease(owner, 10.0)
    clock.advance(9.5)
    with pytest.raises(LeaseHeld):
        store.lease(owner, 10.0)
    clock.advance(0.5)
    return store.lease(owner, 10.0)


def test_a_second_writer_is_told_who_holds_the_lease_and_until_when(opener: Opener) -> None:
    clock = ManualClock(start=1_000_000.0)
    first, second = opener(clock=clock), opener(clock=clock)
    lease = first.lease("trainer of Ada", 10.0)
    assert (lease.owner, lease.ttl_s, lease.expires_at) == ("trainer of Ada", 10.0, 1_000_010.0)
    clock.advance(4.0)
    with pytest.raises(LeaseHeld, match=r"'trainer of Ada' holds .* 1970-01-12T13:46:50\+00:00 .* for 10 s") as held:
        second.lease("trainer of Bob", 10.0)
    assert (held.value.owner, held.value.expires_at) == ("trainer of Ada", 1_000_010.0)
    with pytest.raises(LeaseHeld):
        second.save(weights(0))
    assert first.save(weights(0), lease=lease) == 0
    assert lease.expires_at == 1_000_014.0
    lease.renew()
    clock.advance(9.0)
    with pytest.raises(LeaseHeld):
        second.lease("trainer of Bob", 10.0)


def test_a_writer_whose_lease_was_taken_writes_nothing_any_more(opener: Opener) -> None:
    clock = ManualClock(start=1_000_000.0)
    first, second = opener(clock=clock), opener(clock=clock)
    old = first.lease("old", 10.0)
    first.save(weights(0), lease=old)
    new = watch_it_end(second, clock, "new")
    for forbidden in (
        lambda: first.save(weights(9), state=weights(9), lease=old),
        old.renew,
        lambda: first.announce_ready(lease=old),
        lambda: first.announce_finished("over", lease=old),
    ):
        with pytest.raises(LeaseLost, match="taken by 'new'"):
            forbidden()
    assert (second.newest(), second.finished()) == (0, None)
    assert second.save(weights(1), lease=new) == 1
    old.release()  # not its own any more: that of the new one stays
    with pytest.raises(LeaseHeld):
        first.lease("old", 10.0)


def test_a_writer_that_is_late_still_writes_when_nobody_has_taken_its_lease(opener: Opener) -> None:
    clock = ManualClock(start=1_000_000.0)
    store = opener(clock=clock)
    lease = store.lease("trainer", 10.0)
    clock.advance(1000.0)
    assert store.save(weights(0), lease=lease) == 0
    with pytest.raises(LeaseHeld):
        store.lease("other", 10.0)


def test_a_lease_taken_between_the_bytes_and_the_record_fences_the_save(opener: Opener, monkeypatch: Any) -> None:
    clock = ManualClock(start=1_000_000.0)
    first, second = opener(clock=clock), opener(clock=clock)
    old = first.lease("old", 10.0)
    gate, write = Gate(), first._medium.write

    def write_late(*args: Any) -> bool:
        gate()
        return write(*args)

    monkeypatch.setattr(first._medium, "write", write_late)
    with ThreadPoolExecutor(1) as pool:
        saved = pool.submit(first.save, weights(9), lease=old)
        gate.wait_entered()
        new = watch_it_end(second, clock, "new")
        assert second.save(weights(1), lease=new) == 0
        gate.release()
        with pytest.raises(LeaseLost):
            saved.result(DEADLINE_S)
    assert (second.newest(), value_of(second.load().arrays)) == (0, 1)
    assert set(second._medium.leftovers()) <= second._register.read().blob_names()


def test_a_save_without_a_lease_puts_its_bytes_again_when_a_lease_came_and_went(
    opener: Opener, monkeypatch: Any
) -> None:
    first, second = opener(), opener()
    gate, write = Gate(), first._medium.write

    def write_late(*args: Any) -> bool:
        gate()
        return write(*args)

    monkeypatch.setattr(first._medium, "write", write_late)
    with ThreadPoolExecutor(1) as pool:
        saved = pool.submit(first.save, weights(5))
        gate.wait_entered()
        second.lease("passing by", 60.0).release()  # it has swept away what it took for left behind
        gate.release()
        assert saved.result(DEADLINE_S) == 0
    assert value_of(second.load().arrays) == 5


class WrongClock:
    """Whose time of day is not that of others, and may be set anew at any moment."""

    def __init__(self, clock: Clock, wrong_s: float = 0.0) -> None:
        self.time_of_day = clock.time
        self.wrong_s = wrong_s
        self.monotonic, self.sleep, self.wait_for = clock.monotonic, clock.sleep, clock.wait_for

    def time(self) -> float:
        return self.time_of_day() + self.wrong_s


@pytest.mark.parametrize("wrong_s", [3600.0, -3600.0])
def test_a_clock_that_is_set_anew_takes_no_lease_from_a_writer_that_lives(opener: Opener, wrong_s: float) -> None:
    clock = ManualClock(start=1_000_000.0)
    wrong = WrongClock(clock)
    first, second = opener(clock=clock), opener(clock=wrong)
    lease = first.lease("alive", 10.0)
    for number in range(3):
        with pytest.raises(LeaseHeld):
            second.lease("other", 10.0)
        clock.advance(6.0)
        wrong.wrong_s += wrong_s
        with pytest.raises(LeaseHeld):
            second.lease("other", 10.0)
        with pytest.raises(LeaseHeld):
            second.save(weights(9))
        assert first.save(weights(number), lease=lease) == number


@pytest.mark.parametrize("wrong_s", [3600.0, -3600.0])
def test_a_clock_that_is_set_anew_keeps_no_lease_for_a_writer_that_is_gone(opener: Opener, wrong_s: float) -> None:
    clock = ManualClock(start=1_000_000.0)
    wrong = WrongClock(clock)
    first, second, third = opener(clock=wrong), opener(clock=WrongClock(clock, -wrong_s)), opener(clock=clock)
    first.save(weights(0), lease=first.lease("gone", 10.0))
    wrong.wrong_s = wrong_s
    first.lease("gone", 10.0)
    with pytest.raises(LeaseHeld):
        third.save(weights(1))
    watch_it_end(second, clock, "other").release()
    assert third.save(weights(1)) == 1


def test_without_a_lease_one_writes_when_that_of_another_is_over(opener: Opener) -> None:
    clock = ManualClock(start=1_000_000.0)
    first, second = opener(clock=clock), opener(clock=clock)
    first.lease("gone", 10.0)
    with pytest.raises(LeaseHeld):
        second.save(weights(0))
    clock.advance(10.0)
    assert second.save(weights(0)) == 0


def test_who_waits_gets_the_lease_of_a_writer_that_is_gone(opener: Opener) -> None:
    first, second = opener(), opener()
    first.lease("gone", 0.1)
    assert second.lease("other", 60.0, timeout_s=DEADLINE_S).owner == "other"


@pytest.mark.parametrize("wrong_s", [3600.0, -3600.0])
def test_readers_neither_hang_nor_give_up_when_a_clock_is_set_anew(opener: Opener, wrong_s: float) -> None:
    clock = WrongClock(SYSTEM_CLOCK)
    reader, writer = opener(clock=clock), opener(clock=clock)
    entered, wait_changed = threading.Event(), reader._medium.wait_changed

    def wait_seen(*args: Any) -> None:
        entered.set()
        wait_changed(*args)

    reader._medium.wait_changed = wait_seen  # type: ignore[method-assign]
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(reader.wait_newer, -1, timeout_s=DEADLINE_S)
        assert entered.wait(DEADLINE_S)
        clock.wrong_s = wrong_s
        writer.save(weights(0))
        assert waiting.result(DEADLINE_S).number == 0
    with pytest.raises(StoreDeadlineExceeded):
        reader.wait_newer(0, timeout_s=0.01)


def test_a_lease_that_is_given_back_can_be_taken(opener: Opener) -> None:
    first, second = opener(), opener()
    lease = first.lease("first", 1e6)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(second.lease, "second", 60.0, timeout_s=DEADLINE_S)
        lease.release()
        assert waiting.result(DEADLINE_S).owner == "second"
    with pytest.raises(LeaseLost):
        first.save(weights(0), lease=lease)


def test_who_takes_the_lease_removes_what_was_left_unfinished(opener: Opener) -> None:
    store = opener()
    store.save(weights(0))
    store._medium.put("000000000001-0badcafe.policy", [b"half of it"])
    store.lease("trainer", 60.0)
    assert set(store._medium.leftovers()) <= store._register.read().blob_names()
    assert value_of(store.load().arrays) == 0


@pytest.mark.parametrize("ttl_s", [0, -1, float("inf"), float("nan")])
def test_a_lease_lasts_for_a_time(opener: Opener, ttl_s: float) -> None:
    with pytest.raises(ValueError, match="ttl_s"):
        opener().lease("trainer", ttl_s)


def test_a_lease_is_one_of_the_store(opener: Opener) -> None:
    with pytest.raises(TypeError, match="lease is what"):
        opener().save(weights(0), lease="mine")  # type: ignore[arg-type]


# --- waiting ----------------------------------------------------------------------------------------------------------


def test_waiting_for_a_newer_policy(opener: Opener) -> None:
    reader, writer = opener(), opener()
    writer.save(weights(0))
    assert reader.wait_newer(-1, timeout_s=DEADLINE_S).number == 0
    with ThreadPoolExecutor(3) as pool:
        waiting = [pool.submit(reader.wait_newer, 1, timeout_s=DEADLINE_S) for _ in range(3)]
        writer.save(weights(1))
        writer.save(weights(2))
        assert [future.result(DEADLINE_S).number for future in waiting] == [2, 2, 2]


def test_waiting_ends_at_the_deadline(opener: Opener) -> None:
    store = opener()
    store.save(weights(0))
    with pytest.raises(StoreDeadlineExceeded, match=r"waited 0\.05 s in vain for a policy newer than 0"):
        store.wait_newer(0, timeout_s=0.05)
    with pytest.raises(StoreDeadlineExceeded):
        store.wait_newer(0, timeout_s=0)
    with pytest.raises(StoreDeadlineExceeded, match="ready"):
        store.wait_ready(timeout_s=0.05)
    store.lease("other", 1e6)
    with pytest.raises(LeaseHeld):
        store.lease("mine", 60.0, timeout_s=0.05)


@pytest.mark.parametrize("call", ["newer", "ready", "lease"])
def test_waiting_ends_when_the_program_stops_and_when_the_store_is_closed(opener: Opener, call: str) -> None:
    opener().lease("other", 1e6)
    for end, error in (("stop", ProgramStopped), ("close", StoreClosed)):
        store = opener()
        context = NodeContext(label="worker", index=0, launch_type="test")
        entered = threading.Event()
        wait = store._medium.wait_changed

        def wait_seen(*args: Any, wait: Any = wait, entered: threading.Event = entered) -> None:
            entered.set()
            wait(*args)

        store._medium.wait_changed = wait_seen  # type: ignore[method-assign]

        def run(store: RecordStore = store, context: NodeContext = context) -> None:
            with bind_context(context):
                if call == "newer":
                    store.wait_newer(0)
                elif call == "ready":
                    store.wait_ready()
                else:
                    store.lease("mine", 60.0, timeout_s=None)

        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(run)
            assert entered.wait(DEADLINE_S)
            context.stop.set("enough") if end == "stop" else store.close()
            with pytest.raises(error):
                waiting.result(DEADLINE_S)


def test_ready_and_finished_are_announced(opener: Opener) -> None:
    worker, trainer = opener(), opener()
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(worker.wait_ready, DEADLINE_S)
        with trainer.lease("trainer", 60.0) as lease:
            trainer.announce_ready(lease=lease)
            waiting.result(DEADLINE_S)
            trainer.save(weights(0), lease=lease)
            waiting = pool.submit(worker.wait_newer, 0, timeout_s=DEADLINE_S)
            trainer.announce_finished("all steps are done", lease=lease)
            with pytest.raises(PoliciesFinished, match="all steps are done") as finished:
                waiting.result(DEADLINE_S)
    assert finished.value.reason == "all steps are done"
    assert worker.finished() == "all steps are done"
    assert worker.wait_newer(-1, timeout_s=DEADLINE_S).number == 0, "what is newer comes before the end"
    with trainer.lease("trainer", 60.0):
        assert worker.finished() is None, "a trainer that goes on"
        with pytest.raises(StoreDeadlineExceeded):
            worker.wait_ready(0.0)
    trainer.announce_finished("again")
    worker.wait_ready(0.0)  # nobody waits for a trainer that has ended
    trainer.announce_ready()
    assert worker.finished() is None


def test_readers_never_wait_for_the_writer(opener: Opener, monkeypatch: Any) -> None:
    reader, writer = opener(), opener()
    writer.save(weights(0))
    for step in ("put", "write", "delete"):
        gate, act = Gate(), getattr(writer._medium, step)

        def held(*args: Any, gate: Gate = gate, act: Any = act) -> Any:
            gate()
            return act(*args)

        monkeypatch.setattr(writer._medium, step, held)
        with ThreadPoolExecutor(1) as pool:
            saved = pool.submit(writer.save, weights(reader.newest() + 1))
            gate.wait_entered()
            policy = within(DEADLINE_S, reader.load)
            assert value_of(policy.arrays) == policy.number
            gate.release()
            assert value_of(reader.load(saved.result(DEADLINE_S)).arrays) == reader.newest()
        monkeypatch.setattr(writer._medium, step, act)


# --- how it is opened -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("keep", [0, -1, 2.5, True])
def test_at_least_one_policy_is_kept(opener: Opener, keep: Any) -> None:
    with pytest.raises(ValueError, match="keep"):
        opener(keep=keep)


def test_the_clock_is_the_system_s_by_default(opener: Opener) -> None:
    assert opener()._clock is SYSTEM_CLOCK
