"""Statistics that workers share: exact however numbers are cut and sent, each counted once, and kept over restarts."""

from __future__ import annotations

import functools
import pickle
import threading
from collections.abc import Iterator
from typing import Any

import hypothesis.extra.numpy as hnp
import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

from topology.errors import ConnectionBroken, ProgramStopped
from topology.nodes.courier import Client, Server, bind_object
from topology.nodes.store.codec import decode, encode_bytes
from topology.nodes.store.moments import Moments
from topology.nodes.store.running_statistics import Batch, RunningStatistics
from topology.nodes.store.statistics_filters import NormaliseObservations, ScaleRewards

NUMBERS = np.random.default_rng(0).normal([1e6, -3.0, 0.0], [0.1, 5.0, 0.0], (1000, 3))


def assert_same(found: Moments, numbers: Any) -> None:
    numbers = np.asarray(numbers, np.float64)
    assert found.count == len(numbers)
    np.testing.assert_allclose(found.mean, numbers.mean(0), rtol=1e-12, atol=1e-9)
    np.testing.assert_allclose(found.m2, np.square(numbers - numbers.mean(0)).sum(0), rtol=1e-7, atol=1e-7)


# --- the value --------------------------------------------------------------------------------------------------------


@given(
    hnp.arrays(np.float64, st.tuples(st.integers(1, 40), st.integers(1, 3)), elements=st.floats(-1e3, 1e3)),
    st.lists(st.integers(0, 40), max_size=6),
    st.randoms(use_true_random=False),
)
def test_it_does_not_matter_how_numbers_are_cut_and_merged(numbers: Any, cuts: list[int], random: Any) -> None:
    parts = [Moments.of(part) for part in np.split(numbers, sorted(min(cut, len(numbers)) for cut in cuts))]
    random.shuffle(parts)
    while len(parts) > 1:
        parts.append(parts.pop(random.randrange(len(parts))).merge(parts.pop(random.randrange(len(parts)))))
    assert_same(parts[0], numbers)


def test_a_small_deviation_about_a_large_mean_is_not_lost() -> None:
    merged = functools.reduce(Moments.merge, (Moments.of([number]) for number in NUMBERS), Moments.empty((3,)))
    assert_same(merged, NUMBERS)
    np.testing.assert_allclose(np.sqrt(merged.variance), NUMBERS.std(0), rtol=1e-6, atol=1e-9)


def test_numbers_are_normalised_and_scaled_within_bounds() -> None:
    moments = Moments.of([[0.0, 5.0], [4.0, 5.0]])
    assert moments.normalise([4.0, 5.0]).tolist() == [1.0, 0.0]
    assert moments.normalise([[400.0, 5.0], [-400.0, 6.0]], clip=3.0).tolist() == [[3.0, 0.0], [-3.0, 3.0]]
    assert moments.scale([4.0, 0.0]).tolist() == [2.0, 0.0]
    assert moments.normalise([1.0, 1.0]).dtype == np.float32
    for few in (Moments.empty((2,)), Moments.of([[7.0, 7.0]])):
        assert few.normalise([4.0, -5.0]).tolist() == [4.0, -5.0], "nothing is known of the deviation yet"


def test_moments_travel_as_arrays() -> None:
    moments = Moments.of(NUMBERS)
    arrays = decode(encode_bytes(moments.to_arrays("obs/"))).arrays
    again = Moments.from_arrays(arrays, "obs/")
    assert again.count == 1000
    np.testing.assert_array_equal(again.m2, moments.m2)
    with pytest.raises(ValueError, match=r"moments need the arrays \['x/count'"):
        Moments.from_arrays(arrays, "x/")
    with pytest.raises(ValueError, match="are none"):
        Moments.from_arrays({**moments.to_arrays(), "mean": np.zeros(2)})


def test_numbers_that_would_spoil_everything_are_refused() -> None:
    for bad in (float("nan"), float("inf")):
        with pytest.raises(ValueError, match="not finite"):
            Moments.of([1.0, bad])
    with pytest.raises(ValueError, match="first axis"):
        Moments.of(1.0)
    with pytest.raises(ValueError, match=r"shape \(\) and \(2,\)"):
        Moments.empty().merge(Moments.empty((2,)))


# --- the service ------------------------------------------------------------------------------------------------------


@pytest.fixture
def service() -> RunningStatistics:
    return RunningStatistics()


@pytest.fixture
def served(service: RunningStatistics) -> Iterator[Client]:
    with Server("statistics") as server:
        bind_object(server, service)
        server.start()
        with Client(server.address) as client:
            yield client


def batch(sequence: int, numbers: Any, *, worker: str = "w", session: str = "s") -> Batch:
    return Batch(worker, session, sequence, "x", Moments.of(numbers))


def test_a_batch_that_comes_twice_counts_once(service: RunningStatistics) -> None:
    assert service.fetch("x") is None
    service.add(batch(0, [1.0, 2.0]))
    service.add(batch(1, [3.0]))
    for again in (batch(1, [3.0]), batch(0, [1.0, 2.0])):
        assert_same(service.add(again), [1.0, 2.0, 3.0])
    service.add(batch(0, [4.0], worker="other"))
    service.add(batch(0, [5.0], session="started again"))
    assert_same(service.fetch("x") or Moments.empty(), [1, 2, 3, 4, 5])
    with pytest.raises(ValueError, match="different things"):
        service.add(batch(2, [[1.0, 2.0]]))


def test_a_service_goes_on_from_its_state(service: RunningStatistics) -> None:
    service.add(batch(0, [1.0, 2.0]))
    service.add(Batch("ü/1", "s", 4, "other", Moments.of(NUMBERS)))
    again = RunningStatistics(decode(encode_bytes(service.state())).arrays)
    assert_same(again.add(batch(0, [1.0, 2.0])), [1.0, 2.0])
    assert_same(again.add(batch(1, [3.0])), [1.0, 2.0, 3.0])
    assert_same(again.add(Batch("ü/1", "s", 4, "other", Moments.of(NUMBERS))), NUMBERS)
    assert RunningStatistics(RunningStatistics().state()).fetch("x") is None


def test_workers_share_what_they_see(served: Client, service: RunningStatistics) -> None:
    parts = np.split(NUMBERS, 4)
    failures: list[BaseException] = []

    def work(index: int) -> None:
        try:
            normalise = NormaliseObservations((3,), served, worker=f"w/{index}", send_every=16)
            for number in parts[index]:
                normalise(number)
            normalise.flush()
            normalise.flush()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(index,)) for index in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert not failures
    assert_same(service.fetch("observations") or Moments.empty(), NUMBERS)
    evaluator = NormaliseObservations((3,), served, worker="evaluator")
    evaluator.refresh()
    with evaluator.frozen():
        normalised = evaluator(NUMBERS)
    np.testing.assert_allclose(normalised.mean(0), 0, atol=1e-3)
    np.testing.assert_allclose(normalised.std(0), [1, 1, 0], atol=1e-3)
    assert_same(service.fetch("observations") or Moments.empty(), NUMBERS)


class Faulty(RunningStatistics):  # type: ignore[misc]  # the service is final; here it loses messages
    """Fails before or after it has counted."""

    def __init__(self) -> None:
        super().__init__()
        self.faults: list[str] = []

    def add(self, batch: Batch) -> Moments:
        fault = self.faults.pop(0) if self.faults else ""
        if fault == "before":
            raise ConnectionBroken("lost on the way")
        answer = super().add(batch)
        if fault == "after":
            raise ConnectionBroken("the answer was lost")
        if fault == "stop":
            raise ProgramStopped("the program stops")
        return answer


def test_a_worker_goes_on_alone_and_every_number_counts_once_when_the_service_is_back(caplog: Any) -> None:
    service = Faulty()
    normalise = NormaliseObservations((3,), service, send_every=10)
    for start in range(0, 1000, 10):
        service.faults = [["before"], ["after"], [], ["after", "before"]][start // 10 % 4]
        normalise(NUMBERS[start : start + 10])
        assert normalise.moments.count >= start + 10
    service.faults = ["after"]
    normalise(NUMBERS[:5])
    with pytest.raises(ConnectionBroken):
        normalise.flush()
    normalise.flush()
    assert_same(service.fetch("observations") or Moments.empty(), np.concatenate([NUMBERS, NUMBERS[:5]]))
    assert "go on alone" in caplog.text


def test_the_stop_of_the_program_is_not_taken_for_a_service_that_is_away() -> None:
    service = Faulty()
    service.faults = ["stop"]
    with pytest.raises(ProgramStopped):
        NormaliseObservations((), service, send_every=1)(1.0)


# --- the filters ------------------------------------------------------------------------------------------------------


def test_observations_count_before_they_are_normalised_and_not_while_frozen() -> None:
    normalise = NormaliseObservations((2,), clip=1.5)
    assert normalise([0.5, -0.5]).tolist() == [0.5, -0.5]
    normalise([[1.0, 5.0], [3.0, 1.0]])
    assert normalise.moments.count == 3
    with normalise.frozen(), normalise.frozen():
        assert normalise([1e9, -1e9]).tolist() == [1.5, -1.5]
    assert normalise.moments.count == 3
    for wrong in ([1.0], [[1.0]], [[[1.0, 2.0]]], 1.0):
        with pytest.raises(ValueError, match=r"observations have the shape \(2,\)"):
            normalise(wrong)


def test_a_filter_goes_on_from_its_state() -> None:
    normalise = NormaliseObservations((3,))
    normalise(NUMBERS[:500])
    again = NormaliseObservations((3,))
    again.restore(decode(encode_bytes(normalise.state())).arrays)
    again(NUMBERS[500:])
    assert_same(again.moments, NUMBERS)
    with pytest.raises(ValueError, match=r"of shape \(3,\), and these have \(2,\)"):
        NormaliseObservations((2,)).restore(normalise.state())


def test_rewards_are_scaled_by_the_deviation_of_the_return() -> None:
    scale = ScaleRewards(discount=0.5, clip=None)
    returns, running = [], 0.0
    for step, reward in enumerate([1.0, -2.0, 4.0, 0.5, 3.0]):
        running = 0.5 * running + reward
        returns.append(running)
        scaled = float(scale(reward, last=step == 2))
        if step == 2:
            running = 0.0
        if step:
            assert scaled == pytest.approx(reward / np.std(returns), rel=1e-6)
    assert_same(scale.moments, returns)
    with scale.frozen():
        before = scale.moments.count
        assert np.sign(scale(-100.0, last=False)) == -1
        assert scale.moments.count == before


def test_rewards_of_several_environments() -> None:
    scale = ScaleRewards(environments=2, discount=0.0, clip=2.0)
    scale([1.0, 3.0], [False, True])
    assert_same(scale.moments, [1.0, 3.0])
    assert scale([1.0, 30.0], [False, False]).tolist()[1] == 2.0
    with pytest.raises(ValueError, match=r"shape \(2,\)"):
        scale(1.0, False)


@pytest.mark.parametrize(
    "settings", [{"clip": 0}, {"clip": -1.0}, {"epsilon": 0}, {"send_every": 0}, {"epsilon": float("nan")}]
)
def test_settings_that_make_no_sense(settings: dict[str, Any]) -> None:
    (name,) = settings
    with pytest.raises(ValueError, match=name):
        NormaliseObservations((1,), **settings)
    with pytest.raises(ValueError, match="discount"):
        ScaleRewards(discount=1.5)


def test_moments_pickle() -> None:
    again = pickle.loads(pickle.dumps(Moments.of(NUMBERS)))
    assert_same(again, NUMBERS)
