"""Tables that are bounded in steps, and items that are taken back while they wait."""

from __future__ import annotations

import numpy as np
import pytest

from topology.errors import ReplayDeadlineExceeded, ReplayError
from topology.nodes import replay
from topology.nodes.replay import rate_limiters, selectors
from topology.nodes.replay.service import ReplayService

FIFO = selectors.Fifo()
AT_ONCE_MS = 0
DEADLINE_MS = 20_000


def bounded(max_steps=10, name="table"):
    return replay.Table(name, FIFO, FIFO, 1000, rate_limiters.MaxSteps(max_steps))


@pytest.fixture
def open_client():
    services = []

    def start(*tables, **options):
        services.append(ReplayService(tables, **options))
        return replay.Client("memory:test", service=services[-1])

    yield start
    for service in services:
        service.close()


def write(writer, steps, *, value=0, table="table"):
    """An item of so many steps; a second leaf is shorter."""
    writer.append_batch({"x": np.full(steps, value)})
    writer.create_item(table, 1.0, {"all": writer.history["x"][-steps:], "last": writer.history["x"][-1]})


def oldest(client):
    return int(client.sample_batch("table", 1).data["all"][0, 0])


def test_inserts_wait_for_room_in_steps_and_deletes_make_it(open_client):
    client = open_client(bounded(10))
    writer = client.trajectory_writer(1)
    for steps in (6, 4):
        write(writer, steps)
        writer.flush(timeout_ms=DEADLINE_MS)
    write(writer, 5, value=1)
    with pytest.raises(ReplayDeadlineExceeded):
        writer.flush(timeout_ms=AT_ONCE_MS)
    first = client.sample_batch("table", 1)
    assert (client.server_info()["table"].num_steps, first.data["all"].shape) == (10, (1, 6))
    client.mutate_priorities("table", deletes=first.info.key.tolist())
    writer.flush(timeout_ms=DEADLINE_MS)
    assert client.server_info()["table"].num_steps == 9


def test_of_items_that_come_together_those_pass_for_which_there_is_room(open_client):
    client = open_client(bounded(10))
    writer = client.trajectory_writer(1)
    writer.append_batch({"x": np.arange(15)})
    writer.create_items("table", [1.0] * 5, {"all": writer.history["x"][-3:]}, period=3)
    with pytest.raises(ReplayDeadlineExceeded):
        writer.flush(timeout_ms=AT_ONCE_MS)
    info = client.server_info()["table"]
    assert (info.current_size, info.num_steps, info.rate_limiter_info.insert_stats.pending) == (3, 9, 2)
    client.reset("table")
    writer.flush(timeout_ms=DEADLINE_MS)
    assert client.server_info()["table"].num_steps == 6


def test_what_the_remover_takes_out_makes_room_too(open_client):
    table = replay.Table("table", FIFO, FIFO, 2, rate_limiters.MaxSteps(10))
    client = open_client(table)
    with client.trajectory_writer(1) as writer:
        for _ in range(3):
            write(writer, 3)
            writer.flush(timeout_ms=DEADLINE_MS)
    assert client.server_info()["table"].num_steps == 6


def test_an_item_that_never_fits_is_refused(open_client):
    client = open_client(bounded(10))
    writer = client.trajectory_writer(1)
    write(writer, 11)
    with pytest.raises(ValueError, match="11 steps never gets in, where max_steps is 10"):
        writer.flush(timeout_ms=DEADLINE_MS)


def test_steps_are_counted_on_from_a_checkpoint(open_client, tmp_path):
    client = open_client(bounded(10), checkpointer=replay.DefaultCheckpointer(str(tmp_path)))
    with client.trajectory_writer(1) as writer:
        write(writer, 6)
        writer.flush(timeout_ms=DEADLINE_MS)
    client.checkpoint()
    again = open_client(bounded(10), checkpointer=replay.DefaultCheckpointer(str(tmp_path)))
    assert again.server_info()["table"].num_steps == 6
    writer = again.trajectory_writer(1)
    write(writer, 5)
    with pytest.raises(ReplayDeadlineExceeded):
        writer.flush(timeout_ms=AT_ONCE_MS)


def test_a_checkpoint_with_more_steps_than_there_is_room_for_keeps_writers_waiting(open_client, tmp_path):
    client = open_client(bounded(10), checkpointer=replay.DefaultCheckpointer(str(tmp_path)))
    writer = client.trajectory_writer(1)
    for _ in range(2):
        write(writer, 5)
    writer.flush(timeout_ms=DEADLINE_MS)
    client.checkpoint()
    again = open_client(bounded(6), checkpointer=replay.DefaultCheckpointer(str(tmp_path)))
    writer = again.trajectory_writer(1)
    write(writer, 1, value=1)
    with pytest.raises(ReplayDeadlineExceeded):
        writer.flush(timeout_ms=AT_ONCE_MS)
    assert again.server_info()["table"].current_size == 2
    again.mutate_priorities("table", deletes=again.sample_batch("table", 1).info.key.tolist())
    writer.flush(timeout_ms=DEADLINE_MS)
    assert again.server_info()["table"].num_steps == 6


def test_limiters_differ_by_their_number_of_steps():
    limiters = [rate_limiters.MaxSteps(5), rate_limiters.MaxSteps(6), rate_limiters.MinSize(1)]
    assert len(set(limiters)) == 3
    assert rate_limiters.MaxSteps(5) == limiters[0]
    assert repr(limiters[0]) == "MaxSteps(5)"
    with pytest.raises(ValueError, match="max_steps"):
        rate_limiters.MaxSteps(0)


# --- taken back -------------------------------------------------------------------------------------------------------


def test_what_is_taken_back_never_gets_in_and_what_comes_after_it_does(open_client):
    client = open_client(bounded(10))
    writer = client.trajectory_writer(1)
    write(writer, 10, value=1)
    write(writer, 4, value=2)
    with pytest.raises(ReplayDeadlineExceeded):
        writer.flush(timeout_ms=AT_ONCE_MS)
    assert writer.take_back("table") == 1
    assert writer.take_back("table") == 0
    writer.flush(timeout_ms=DEADLINE_MS)  # there is nothing to wait for
    client.mutate_priorities("table", deletes=client.sample_batch("table", 1).info.key.tolist())
    write(writer, 3, value=3)
    writer.flush(timeout_ms=DEADLINE_MS)
    assert oldest(client) == 3
    assert client.server_info()["table"].current_size == 1


def test_what_is_in_the_table_is_not_taken_back(open_client):
    client = open_client(bounded(10))
    writer = client.trajectory_writer(1)
    write(writer, 10, value=1)
    writer.flush(timeout_ms=DEADLINE_MS)
    assert writer.take_back("table") == 0
    assert oldest(client) == 1


def test_what_is_taken_back_while_it_is_still_on_its_way_is_dropped_when_it_arrives(open_client):
    client = open_client(bounded(10))
    writer = client.trajectory_writer(1)
    with writer.one_message():  # it is sent at the end, and taken back before
        write(writer, 4, value=1)
        assert writer.take_back("table") == 1
    writer.flush(timeout_ms=DEADLINE_MS)
    assert client.server_info()["table"].current_size == 0
    write(writer, 4, value=2)
    writer.flush(timeout_ms=DEADLINE_MS)
    assert oldest(client) == 2


def test_others_that_wait_pass_when_something_is_taken_back(open_client):
    client = open_client(bounded(10))
    large, small = client.trajectory_writer(1), client.trajectory_writer(1)
    write(large, 6)
    large.flush(timeout_ms=DEADLINE_MS)
    write(large, 6)
    write(small, 4)
    for writer in (large, small):
        with pytest.raises(ReplayDeadlineExceeded):
            writer.flush(timeout_ms=AT_ONCE_MS)
    assert large.take_back("table") == 1
    small.flush(timeout_ms=DEADLINE_MS)


def test_steps_are_let_go_of_with_what_was_taken_back():
    with replay.Server([bounded(10)]) as server:
        client = server.localhost_client()
        writer = client.trajectory_writer(1)
        write(writer, 10)
        writer.flush(timeout_ms=DEADLINE_MS)
        write(writer, 8)
        with pytest.raises(ReplayDeadlineExceeded):
            writer.flush(timeout_ms=AT_ONCE_MS)
        assert writer.take_back("table") == 1
        client.reset("table")
        writer.close()
        assert server._service.store.live_rows == 0


# --- waiting for inserts ----------------------------------------------------------------------------------------------


def test_who_waits_for_inserts_hears_of_the_next_one_that_gets_in():
    with replay.Server([bounded(10)]) as server, replay.Client(server.address) as client:
        service, writer = server._service, client.trajectory_writer(1)
        write(writer, 10)
        writer.flush(timeout_ms=DEADLINE_MS)
        assert client.wait_for_inserts("table", 0, 20)[0].inserts == 1
        waits = [service.wait_for_inserts("table", 1) for _ in range(2)]
        write(writer, 4)  # there is no room
        with pytest.raises(ReplayDeadlineExceeded):
            writer.flush(timeout_ms=AT_ONCE_MS)
        assert [wait.done() for wait in waits] == [False, False]
        client.mutate_priorities("table", deletes=client.sample_batch("table", 1).info.key.tolist())
        assert [wait.result(20)[0].inserts for wait in waits] == [2, 2]
        waits = [service.wait_for_inserts("table", 2, steps=steps) for steps in (0, 100)]
        client.reset("table")
        assert [wait.result(20)[0][:3] for wait in waits] == [(0, 0, 0)] * 2


def test_who_waits_for_steps_hears_when_so_many_have_got_in():
    with replay.Server([bounded(10)]) as server, replay.Client(server.address) as client:
        service, writer = server._service, client.trajectory_writer(1)
        write(writer, 4)
        writer.flush(timeout_ms=DEADLINE_MS)
        (there,) = client.occupancy("table")
        assert there[:3] == (1, 4, 1)
        assert client.wait_for_inserts("table", 0, 20, steps=4, also=["table"]) == [there, there]
        wait = service.wait_for_inserts("table", 1, steps=9)
        write(writer, 3)
        writer.flush(timeout_ms=DEADLINE_MS)
        client.mutate_priorities("table", deletes=client.sample_batch("table", 1).info.key.tolist())
        assert not wait.done()
        assert client.wait_for_inserts("table", 1, 0.01, steps=9)[0][:3] == (2, 7, 1)
        write(writer, 2)
        assert wait.result(20)[0][:3] == (3, 9, 2)
        writer.close()
    with replay.Server([bounded(10)]) as server:
        assert server.localhost_client().occupancy("table")[0].life != there.life


def test_who_waits_for_inserts_in_vain_hears_the_same_number_and_is_forgotten(open_client):
    table = bounded(10)
    client = open_client(table)
    assert client.wait_for_inserts("table", 0, 0.01)[0].inserts == 0
    watch = table.watch_inserts(0)
    watch.future.cancel()
    assert not table._insert_watches._watches
    table.end_watch(watch)
    waits = [client.link.submit("wait_for_inserts", "table", 0) for _ in range(2)]
    table.close("the test says so")
    for wait in [*waits, client.link.submit("wait_for_inserts", "table", 0)]:
        with pytest.raises(ReplayError, match="the test says so"):
            wait.result(20)


# --- one message ------------------------------------------------------------------------------------------------------


def test_items_in_one_message_travel_together_and_at_once(open_client, monkeypatch):
    client = open_client(bounded(100), bounded(100, name="other"))
    sent = []
    monkeypatch.setattr(client, "submit_insert", lambda batch: sent.append(batch) or _insert(client, batch))
    writer = client.trajectory_writer(1)
    for _ in range(3):
        with writer.one_message():
            write(writer, 2)
            write(writer, 2, table="other")
    assert [[run.table for run in batch.runs] for batch in sent] == [["table", "other"]] * 3
    writer.flush(timeout_ms=DEADLINE_MS)
    with writer.one_message():
        pass
    assert len(sent) == 3


def _insert(client, batch):
    return client.link.submit("insert", batch, client.link.visit)
