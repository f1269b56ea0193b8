"""What users report of replay, through Reverb's names, and what Reverb's tests check of tables. Nothing here needs
TensorFlow."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from topology.compat import provided
from topology.testing import Gate, no_leaks

with provided():
    import launchpad as lp
    import reverb
    from reverb import errors

pytestmark = pytest.mark.usefixtures("provided")

TIMEOUT_S = 30


def make_table(name: str = "table", **options: Any) -> Any:
    uniform, fifo, limiter = reverb.selectors.Uniform(), reverb.selectors.Fifo(), reverb.rate_limiters.MinSize(1)
    given = {"sampler": uniform, "remover": fifo, "max_size": 1000, "rate_limiter": limiter} | options
    return reverb.Table(name, **given)


def values(samples: Any) -> list[int]:
    return [int(sample.data[0].item()) for sample in samples]


def drawn(client: Any, count: int, table: str = "table") -> list[int]:
    return values(client.sample(table, count, emit_timesteps=False))


# --- tables ---------------------------------------------------------------------------------------------------------


def test_a_table_with_a_seed_gives_the_same_samples_again(serve: Any) -> None:
    def found(seed: int | None) -> list[int]:
        client = serve(make_table(seed=seed, sampler=reverb.selectors.Prioritized(0.8)))
        for i in range(50):
            client.insert([i], {"table": 1.0 + i})
        return drawn(client, 100)

    assert found(3) == found(3)
    assert found(3) != found(4)
    assert found(None) != found(None), "without one they differ"


def test_info_of_whole_trajectories_is_of_numbers(serve: Any) -> None:
    client = serve(make_table())
    client.insert([1], {"table": 2.0})
    (sample,) = client.sample("table", emit_timesteps=False)
    assert [type(field) for field in sample.info] == [int, float, int, float, int]
    assert sample.info[1:] == (1.0, 1, 2.0, 1)


def test_items_go_after_so_many_samples(serve: Any) -> None:
    client = serve(make_table(max_times_sampled=2, sampler=reverb.selectors.Fifo()))
    for i in range(5):
        client.insert([i], {"table": 1.0})
    assert drawn(client, 5) == [0, 0, 1, 1, 2]
    assert client.server_info()["table"].current_size == 3


@pytest.mark.parametrize(
    ("remover", "left"),
    [
        ("Fifo", [2, 3, 4]),
        ("Lifo", [0, 1, 2]),
        ("MinHeap", [1, 2, 3]),
        ("MaxHeap", [0, 1, 4]),
    ],
)
def test_what_a_full_table_keeps(serve: Any, remover: str, left: list[int]) -> None:
    """The new item is in before one is removed: it may be the one that goes."""
    client = serve(make_table(max_size=3, remover=getattr(reverb.selectors, remover)()))
    for i in range(5):
        client.insert([i], {"table": float(i % 4)})
    assert sorted(set(drawn(client, 200))) == left


def test_deletes_below_the_least_size_keep_samplers_waiting(serve: Any) -> None:
    client = serve(make_table(rate_limiter=reverb.rate_limiters.MinSize(2)))
    for i in range(2):
        client.insert([i], {"table": 1.0})
    keys = {sample.info.key for sample in client.sample("table", 50, emit_timesteps=False)}
    client.mutate_priorities("table", deletes=list(keys))
    assert client.server_info()["table"].current_size == 0
    dataset = reverb.TrajectoryDataset(client.server_address, "table", [np.int64], [(1,)], 1, rate_limiter_timeout_ms=0)
    assert list(dataset.as_numpy_iterator()) == []
    with ThreadPoolExecutor(1) as pool:
        sampling = pool.submit(drawn, client, 1)
        for i in range(2, 4):
            client.insert([i], {"table": 1.0})
        assert sampling.result(TIMEOUT_S)[0] in {2, 3}


@pytest.mark.parametrize(
    ("updates", "error"),
    [
        ({1: float("nan")}, ValueError),
        ({1: -1.0}, ValueError),
        ({1: "high"}, (TypeError, ValueError)),
        ({"key": 1.0}, (TypeError, ValueError)),
    ],
)
def test_wrong_priorities_are_an_error_here_and_the_server_goes_on(serve: Any, updates: Any, error: Any) -> None:
    client = serve(make_table())
    client.insert([1], {"table": 1.0})
    with pytest.raises(error):
        client.mutate_priorities("table", updates=updates)
    with pytest.raises(error):
        client.insert([1], {"table": next(iter(updates.values())) if 1 in updates else "high"})
    assert drawn(client, 1) == [1]


def test_items_may_reach_over_the_end_of_an_episode_if_its_steps_are_kept(serve: Any) -> None:
    client = serve(reverb.Table.queue("table", 10))
    with client.trajectory_writer(num_keep_alive_refs=3) as writer:
        writer.append([1])
        writer.end_episode(clear_buffers=False)
        writer.append([2])
        writer.create_item("table", 1.0, [writer.history[0][-2:]])
        writer.end_episode()
        writer.append([3])
        with pytest.raises(ValueError, match="cannot contain None"):
            writer.create_item("table", 1.0, [writer.history[0][-2:]])
    (sample,) = client.sample("table", emit_timesteps=False)
    assert sample.data[0].tolist() == [1, 2]


def test_a_column_whose_steps_are_gone_is_refused(serve: Any) -> None:
    client = serve(make_table())
    with client.trajectory_writer(num_keep_alive_refs=1) as writer:
        writer.append([1])
        gone = writer.history[0][-1:]
        writer.append([2])
        with pytest.raises((ValueError, RuntimeError), match=r"keep|expired|alive"):
            writer.create_item("table", 1.0, [gone])


def test_the_first_writer_makes_no_items_of_nothing(serve: Any) -> None:
    client = serve(make_table())
    with client.writer(2) as writer:
        for count in (0, -1):
            with pytest.raises(ValueError, match=rf"num_timesteps \({count}\) must be a positive integer"):
                writer.create_item("table", count, 1.0)
        with pytest.raises(RuntimeError, match="before append"):
            writer.create_item("table", 1, 1.0)
        writer.append([1])
        with pytest.raises(ValueError, match=r"num_timesteps \(2\) is more than the 1 steps"):
            writer.create_item("table", 2, 1.0)
    assert client.server_info()["table"].current_size == 0


def test_inserts_wait_for_samples_when_the_ratio_is_met(serve: Any) -> None:
    """So actors do not run ahead of a learner that is not there yet. `flush` says so in time."""
    limiter = reverb.rate_limiters.SampleToInsertRatio(samples_per_insert=1.0, min_size_to_sample=2, error_buffer=2.0)
    client = serve(make_table(rate_limiter=limiter))
    with client.trajectory_writer(num_keep_alive_refs=1) as writer:

        def write() -> None:
            for i in range(20):
                writer.append([i])
                writer.create_item("table", 1.0, [writer.history[0][-1:]])
                writer.flush(timeout_ms=20)

        with pytest.raises(errors.DeadlineExceededError):
            write()
        before = client.server_info()["table"].rate_limiter_info.insert_stats.completed
        assert before < 6
        drawn(client, 4)
        writer.flush(timeout_ms=TIMEOUT_S * 1000)
        assert client.server_info()["table"].rate_limiter_info.insert_stats.completed == before + 1


# --- nodes ----------------------------------------------------------------------------------------------------------


def queue_of_one() -> list[Any]:
    return [reverb.Table.queue("empty", 1), reverb.Table.queue("full", 1)]


def test_a_node_stops_with_blocked_readers_and_writers() -> None:
    blocked = Gate()

    def read(client: Any) -> None:
        blocked()
        list(client.sample("empty"))

    def write(client: Any) -> None:
        blocked()
        for i in range(100):
            client.insert([i], {"full": 1.0})

    program = lp.Program("replay")
    replay = program.add_node(lp.ReverbNode(queue_of_one), label="replay")
    with program.group("client"):
        for function in (read, write) * 3:
            program.add_node(lp.PyNode(function, replay))
    with no_leaks():
        run = lp.launch(program, "test_mt", serialize_py_nodes=False)
        blocked.wait_entered(6)
        blocked.release()
        with replay.dereference() as client:
            while client.server_info(TIMEOUT_S)["full"].rate_limiter_info.insert_stats.pending < 1:
                pass
        assert run.stop(timeout=TIMEOUT_S)
        assert run.wait()
        assert set(run.exit_codes.values()) == {0}


def one_table(name: str) -> list[Any]:
    return [make_table(name, max_size=10)]


class Learner:
    """Samples a mix of two services, and knows how much is in each."""

    def __init__(self, online: Any, demonstrations: Any) -> None:
        self._clients = {"online": online, "demonstrations": demonstrations}

    def sizes(self) -> dict[str, int]:
        return {name: client.server_info()[name].current_size for name, client in self._clients.items()}

    def batch(self) -> list[int]:
        return [i for name, client in self._clients.items() for i in drawn(client, 2, name)]


def test_a_learner_of_several_replay_nodes() -> None:
    program = lp.Program("several")
    with program.group("replay"):
        online, demonstrations = (
            program.add_node(lp.ReverbNode(lambda name=name: one_table(name))) for name in ("online", "demonstrations")
        )
    learner = program.add_node(lp.CourierNode(Learner, online, demonstrations), label="learner")
    with no_leaks(), lp.launch(program, "test_mt"):
        for handle, name, value in ((online, "online", 1), (demonstrations, "demonstrations", 2)):
            with handle.dereference() as client:
                for _ in range(value * 2):
                    client.insert([value], {name: 1.0})
        with learner.dereference() as client:
            assert client.sizes() == {"online": 2, "demonstrations": 4}
            assert client.batch() == [1, 1, 2, 2]


def test_a_node_checkpoints_at_the_stop_and_begins_with_it(tmp_path: Path) -> None:
    def program() -> tuple[Any, Any]:
        made = lp.Program("checkpoints")
        node = lp.ReverbNode(
            lambda: one_table("table"),
            checkpoint_ctor=lambda: reverb.checkpointers.DefaultCheckpointer(str(tmp_path / "kept")),
            checkpoint_time_delta_minutes=10,
        )
        return made, made.add_node(node, label="replay")

    with no_leaks():
        for expected in (0, 1):
            made, handle = program()
            with lp.launch(made, "test_mt"), handle.dereference() as client:
                assert client.server_info()["table"].current_size == expected
                client.insert([7], {"table": 3.0})
    assert list((tmp_path / "kept").iterdir())
