import collections
from concurrent.futures import Future
from typing import NamedTuple

import numpy as np
import pytest

from topology.errors import ConnectionBroken, ReplayDeadlineExceeded, ReplayError, TableNotFound
from topology.nodes import replay
from topology.nodes.replay import selectors
from topology.nodes.replay.messages import StreamLost
from topology.nodes.replay.service import ReplayService
from topology.nodes.replay.writers import TrajectoryWriter

FIFO = selectors.Fifo()


@pytest.fixture
def open_service():
    """Starts a service with the given tables, and gives it with a client."""
    services = []

    def start(*tables):
        service = ReplayService(tables)
        services.append(service)
        return service, replay.Client("memory:test", service=service)

    yield start
    for service in services:
        service.close()


@pytest.fixture
def client(open_service, make_table):
    return open_service(make_table(sampler=FIFO, max_times_sampled=1))[1]


def data(client, count=1):
    return [next(client.sample("table", 1, emit_timesteps=False)).data for _ in range(count)]


def test_history_needs_a_step(client):
    with pytest.raises(RuntimeError, match="before append"):
        _ = client.trajectory_writer(1).history


def test_history_has_the_structure_of_the_steps(client):
    writer = client.trajectory_writer(5)
    writer.append({"a": 1, "b": {"c": np.zeros(3)}})
    writer.append({"a": 2, "b": {"c": np.ones(3)}})
    assert writer.history["a"].path == ("a",)
    assert writer.history["b"]["c"].path == ("b", "c")
    assert len(writer.history["a"]) == 2
    assert writer.history["a"][:].numpy().tolist() == [1, 2]
    assert writer.history["b"]["c"][-1].numpy().tolist() == [1.0] * 3


def test_history_of_flat_steps_and_of_named_tuples(client):
    class Step(NamedTuple):
        reward: float
        action: int

    writer = client.trajectory_writer(5)
    writer.append(3.5)
    assert writer.history[-1].numpy() == 3.5
    writer = client.trajectory_writer(5)
    writer.append(Step(1.0, 2))
    assert isinstance(writer.history, Step)
    assert writer.history.action[-1].numpy() == 2


@pytest.mark.parametrize("make", [tuple, list, lambda v: dict(zip("abc", v, strict=False))])
def test_later_steps_may_have_more_fields(client, make):
    writer = client.trajectory_writer(10)
    writer.append(make([1, 2]))
    writer.append(make([3, 4, 5]))
    key = "c" if isinstance(writer.history, dict) else 2
    assert len(writer.history[key]) == 2
    assert writer.history[key][-1].numpy() == 5
    with pytest.raises(ValueError, match=r"has no value \(None\) in the steps \[0\]"):
        writer.history[key][:]


def test_missing_cells_raise_and_others_do_not(client):
    writer = client.trajectory_writer(10)
    writer.append({"o": 0})
    writer.append({"o": 1, "a": 10})
    writer.append({"o": 2, "a": None})
    writer.append({"o": 3, "a": 30})
    assert writer.history["a"][[1, 3]].numpy().tolist() == [10, 30]
    for wrong in (slice(None), slice(1, 3), [0], -2):
        with pytest.raises(ValueError, match="column a has no value"):
            writer.history["a"][wrong]


@pytest.mark.parametrize("index", [0, 2, -1, -3])
def test_ints_take_one_cell_without_time_axis(client, index):
    writer = client.trajectory_writer(10)
    for i in range(5):
        writer.append({"x": np.full((2,), i)})
    column = writer.history["x"][index]
    assert column.shape == (2,)
    assert column.is_squeezed
    assert column.numpy().tolist() == [[0, 0], [1, 1], [2, 2], [3, 3], [4, 4]][index]


@pytest.mark.parametrize("index", [slice(None), slice(1, 3), slice(-2, None), slice(None, None, -1), slice(0, 5, 2)])
def test_slices(client, index):
    writer = client.trajectory_writer(10)
    for i in range(5):
        writer.append({"x": i})
    column = writer.history["x"][index]
    assert column.numpy().tolist() == list(range(5))[index]
    assert column.shape == (len(column),)
    assert column.dtype == np.int64


def test_lists_may_permute_and_repeat(client):
    writer = client.trajectory_writer(10)
    for i in range(5):
        writer.append({"x": i})
    assert writer.history["x"][[3, -5, 0]].numpy().tolist() == [3, 0, 0]
    assert writer.history["x"][1:][[0, -1]].numpy().tolist() == [1, 4]
    assert writer.history["x"][:][-1].numpy() == 4
    with pytest.raises(IndexError):
        writer.history["x"][5]
    with pytest.raises(TypeError, match="ints, slices or lists"):
        writer.history["x"]["a"]


def test_items_of_every_kind_of_index_come_back(client):
    with client.trajectory_writer(10) as writer:
        for i in range(6):
            writer.append({"x": np.array([i, -i]), "y": float(i)})
        x, y = writer.history["x"], writer.history["y"]
        trajectory = {"one": x[-1], "all": y[:], "odd": y[1::2], "back": y[::-1], "some": x[[4, 0, 4]], "none": y[6:]}
        writer.create_item("table", 1.0, trajectory)
    ((all_, back, none, odd, one, some),) = data(client)
    assert all_.tolist() == [0, 1, 2, 3, 4, 5]
    assert back.tolist() == [5, 4, 3, 2, 1, 0]
    assert none.shape == (0,)
    assert odd.tolist() == [1, 3, 5]
    assert one.tolist() == [5, -5]
    assert some.tolist() == [[4, -4], [0, 0], [4, -4]]


def test_partial_steps_belong_to_one_step(client):
    with client.trajectory_writer(4) as writer:
        writer.append({"o": 1}, partial_step=True)
        assert writer.step_is_open
        assert writer.episode_steps == 0
        writer.create_item("table", 1.0, {"o": writer.history["o"][-1]})
        writer.flush()  # the open step is sent, its later cells must follow
        writer.append({"a": 2, "r": 3.0})
        assert not writer.step_is_open
        assert writer.episode_steps == 1
        writer.create_item("table", 1.0, {"o": writer.history["o"][-1], "a": writer.history["a"][-1:]})
        writer.append({"o": 5}, partial_step=True)
        writer.create_item("table", 1.0, {"o": writer.history["o"][:]})
        writer.flush()
        writer.append({"a": 6, "r": 7.0})
        writer.create_item("table", 1.0, {"a": writer.history["a"][:], "r": writer.history["r"][-1]})
    assert [[leaf.tolist() for leaf in item] for item in data(client, 4)] == [[1], [[2], 1], [[1, 5]], [[2, 6], 7.0]]


def test_a_column_is_set_once_a_step(client):
    writer = client.trajectory_writer(4)
    writer.append({"a": 1, "b": {"c": 2}}, partial_step=True)
    with pytest.raises(ValueError, match="field b/c was set in this step already"):
        writer.append({"b": {"c": 3}})
    writer.append({"a": None, "d": 4})
    assert writer.history["d"][-1].numpy() == 4


def test_dtype_and_shape_are_kept_by_every_column(client):
    writer = client.trajectory_writer(4)
    writer.append({"obs": {"pixels": np.zeros((2, 3), np.uint8)}})
    with pytest.raises(
        ValueError, match=r"column obs/pixels holds <uint8\[2, 3\]>, the new step has <float32\[2, 3\]>"
    ):
        writer.append({"obs": {"pixels": np.zeros((2, 3), np.float32)}})
    with pytest.raises(ValueError, match=r"column obs/pixels holds <uint8\[2, 3\]>, the new step has <uint8\[3, 2\]>"):
        writer.append({"obs": {"pixels": np.zeros((3, 2), np.uint8)}})
    assert writer.episode_steps == 1
    writer.append({"obs": {"pixels": np.ones((2, 3), np.uint8)}})
    assert writer.history["obs"]["pixels"][:].numpy().sum() == 6


@pytest.mark.parametrize("value", [object(), np.array([None]), np.array([{}, "a"])])
def test_values_that_cannot_be_stored(client, value):
    with pytest.raises(TypeError, match=r"column a/0: values of type \w+ cannot be stored"):
        client.trajectory_writer(1).append({"a": [value]})


def test_steps_like_the_last_one_are_checked_as_the_first_was(client):
    writer = client.trajectory_writer(4)
    for value in range(3):
        writer.append({"n": value, "x": np.full(3, value, np.float32)})
    for wrong in ({"n": 1.5}, {"n": 1 << 80}, {"x": np.zeros(3)}, {"x": np.zeros((1, 3), np.float32)}, {"x": 0.0}):
        with pytest.raises((ValueError, TypeError), match=f"column {next(iter(wrong))}"):
            writer.append({"n": 0, "x": np.zeros(3, np.float32), **wrong})
    writer.append({"n": np.int64(3), "x": np.full(3, 3, np.float32)})
    writer.append({"n": None, "x": np.full(3, 4, np.float32)})
    writer.append({"n": 5, "x": np.full(6, 5, np.float32)[::2]})
    assert writer.history["x"][-3:].numpy()[:, 0].tolist() == [3, 4, 5]
    assert writer.history["n"][[3, 5]].numpy().tolist() == [3, 5]
    with pytest.raises(ValueError, match="column n has no value"):
        writer.history["n"][-2:]


def test_another_container_in_the_same_place(client):
    writer = client.trajectory_writer(1)
    writer.append({"a": {"b": 1}})
    with pytest.raises(ValueError, match="a: earlier steps have a dict there, the new step a value"):
        writer.append({"a": 1})


@pytest.mark.parametrize("dtype", ["?", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8", "c8", "c16"])
def test_every_dtype_round_trips(client, dtype):
    value = np.array([[0, 1], [1, 0]]).astype(dtype)
    client.insert(value, {"table": 1.0})
    ((got,),) = data(client)
    assert got.dtype == value.dtype
    np.testing.assert_array_equal(got, value[None])


def test_leaves_must_be_columns_of_this_writer(client):
    writer, other = client.trajectory_writer(2), client.trajectory_writer(2)
    writer.append({"a": 1})
    other.append({"a": 1})
    for wrong in (np.zeros(3), writer.history["a"], other.history["a"][:]):
        with pytest.raises(TypeError, match="leaves of a trajectory"):
            writer.create_item("table", 1.0, {"a": wrong})
    with pytest.raises(ValueError, match="at least one step"):
        writer.create_item("table", 1.0, {"a": writer.history["a"][1:]})


def test_expired_steps(client):
    writer = client.trajectory_writer(2)
    writer.append({"a": 0})
    early = writer.history["a"][:]
    for i in range(600):
        writer.append({"a": i})
    with pytest.raises(ValueError, match="have expired; only the latest 2"):
        writer.history["a"][-3:]
    with pytest.raises(ValueError, match="only the latest 2 steps"):
        writer.create_item("table", 1.0, {"a": early})
    with pytest.raises(RuntimeError, match="expired"):
        early.numpy()


@pytest.mark.parametrize("priority", [-0.5, float("nan"), float("inf")])
def test_wrong_priorities(client, priority):
    writer = client.trajectory_writer(2)
    writer.append({"a": 0})
    with pytest.raises(ValueError, match="'table': priorities must be finite and not negative"):
        writer.create_item("table", priority, {"a": writer.history["a"][:]})


def test_num_keep_alive_refs_is_checked(client):
    for wrong in (0, -1):
        with pytest.raises(ValueError, match="num_keep_alive_refs"):
            client.trajectory_writer(wrong)


def test_unknown_table(client):
    writer = client.trajectory_writer(1)
    writer.append({"a": 0})
    with pytest.raises(TableNotFound, match=r"no table 'tabel'.* its tables are table"):
        writer.create_item("tabel", 1.0, {"a": writer.history["a"][:]})
    writer.create_item("table", 1.0, {"a": writer.history["a"][:]})
    writer.flush()
    unchecked = client.trajectory_writer(1, validate_items=False)
    unchecked.append({"a": 0})
    unchecked.create_item("tabel", 1.0, {"a": unchecked.history["a"][:]})
    with pytest.raises(TableNotFound, match="its tables are table"):
        unchecked.flush()
    unchecked.create_item("table", 1.0, {"a": unchecked.history["a"][:]})
    unchecked.flush()
    assert client.server_info()["table"].current_size == 2


@pytest.mark.parametrize("validate", [True, False])
def test_items_must_match_the_signature(open_service, make_table, validate):
    signature = {"a": replay.Spec((None, 2), np.float32), "b": replay.Spec((), np.int32)}
    _, client = open_service(make_table(signature=signature))
    writer = client.trajectory_writer(3, validate_items=validate)

    def create(a, b):
        writer.append({"a": np.asarray(a), "b": np.asarray(b)})
        writer.create_item("table", 1.0, {"a": writer.history["a"][-1:], "b": writer.history["b"][-1]})
        writer.flush()

    create(np.zeros(2, np.float32), np.int32(1))
    assert client.server_info()["table"].current_size == 1
    history = writer.history
    for wrong, text in (
        ({"a": history["a"][:], "b": history["b"][:]}, r"column b of the item is <int32\[1\]>, .* says <int32\[\]>"),
        (
            {"a": history["a"][-1], "b": history["b"][-1]},
            r"column a of the item is <float32\[2\]>, .* <float32\[\?, 2\]>",
        ),
        ({"a": history["a"][:]}, r"the item has 1 columns \(a\), the table's signature has 2 \(a, b\)"),
    ):
        with pytest.raises(ValueError, match=text):
            create_and_flush(writer, wrong)
    assert client.server_info()["table"].current_size == 1
    writer.create_item("table", 1.0, {"a": history["a"][:], "b": history["b"][-1]})
    writer.flush()
    assert client.server_info()["table"].current_size == 2


def create_and_flush(writer, trajectory):
    writer.create_item("table", 1.0, trajectory)
    writer.flush()


def test_flush_checks_its_argument(client):
    with pytest.raises(ValueError, match="block_until_num_items"):
        client.trajectory_writer(1).flush(-1)


def test_timeouts_leave_the_writer_usable(open_service):
    service, client = open_service(replay.Table.queue("table", 1))
    writer = client.trajectory_writer(1)
    for i in range(3):
        writer.append({"x": i})
        writer.create_item("table", 1.0, {"x": writer.history["x"][-1]})
    with pytest.raises(ReplayDeadlineExceeded, match="not confirmed yet"):
        writer.flush(timeout_ms=1)
    with pytest.raises(ReplayDeadlineExceeded):
        writer.end_episode(timeout_ms=1)
    assert writer.episode_steps == 0
    assert [x.tolist() for (x,) in data(client, 3)] == [0, 1, 2]
    writer.flush(timeout_ms=5000)
    writer.append({"x": 9})
    writer.create_item("table", 1.0, {"x": writer.history["x"][-1]})
    writer.flush(timeout_ms=5000)
    assert data(client)[0][0] == 9
    writer.close()
    assert service.store.live_rows == 0


def test_flush_lets_so_many_items_stay(open_service):
    _, client = open_service(replay.Table.queue("table", 1))
    writer = client.trajectory_writer(1)
    for i in range(4):
        writer.append({"x": i})
        writer.create_item("table", 1.0, {"x": writer.history["x"][-1]})
    writer.flush(4, timeout_ms=1)
    with pytest.raises(ReplayDeadlineExceeded):
        writer.flush(0, timeout_ms=1)


def test_episodes_end_with_or_without_clearing(client):
    with client.trajectory_writer(10) as writer:
        for i in range(3):
            writer.append({"x": i})
        assert writer.episode_steps == 3
        writer.end_episode(clear_buffers=False)
        assert writer.episode_steps == 0
        writer.append({"x": 3})
        writer.create_item("table", 1.0, {"x": writer.history["x"][-2:]})
        writer.end_episode()
        assert len(writer.history["x"]) == 0
        with pytest.raises(IndexError):
            writer.history["x"][-1]
        writer.append({"x": 4})
        assert writer.history["x"][:].numpy().tolist() == [4]
    assert data(client)[0][0].tolist() == [2, 3]


def test_batches_of_steps(client):
    with client.trajectory_writer(3) as writer:
        writer.append({"x": -2, "y": [0.0]})
        writer.append({"x": -1, "y": [0.0]})
        writer.append_batch({"x": np.arange(700), "y": [np.zeros(700)]})
        assert writer.episode_steps == 702
        x = writer.history["x"]
        writer.create_items("table", np.ones(700), {"x": x[-1]})
        writer.create_items("table", [1.0, 2.0, 3.0], {"x": x[-3:]}, period=2)
        writer.append_batch({"x": np.arange(3), "y": [np.zeros(3)]})
        writer.create_items("table", [1.0] * 3, {"x": x[-3:]})
    got = [x.tolist() for (x,) in data(client, 706)]
    assert got[:700] == list(range(700))
    assert got[700:] == [
        [693, 694, 695],
        [695, 696, 697],
        [697, 698, 699],
        [698, 699, 0],
        [699, 0, 1],
        [0, 1, 2],
    ]


def test_batches_of_steps_are_checked(client):
    writer = client.trajectory_writer(3)
    with pytest.raises(ValueError, match=r"one common leading length above 0, got a \(3,\), b \(4,\)"):
        writer.append_batch({"a": np.zeros(3), "b": np.zeros(4)})
    writer.append({"a": 1.0}, partial_step=True)
    with pytest.raises(ValueError, match="a partial step is open"):
        writer.append_batch({"a": np.zeros(3)})
    writer.append({})
    with pytest.raises(ValueError, match="only the latest 1 steps"):
        writer.create_items("table", [1.0, 1.0], {"a": writer.history["a"][-1:]})


def test_steps_are_sent_once_however_many_items_share_them(open_service, make_table):
    service, client = open_service(make_table("table", sampler=FIFO), make_table("other"))
    sent = []
    insert = service.insert
    service.insert = lambda batch, *_: sent.append(batch) or insert(batch)
    with client.trajectory_writer(20) as writer:
        for i in range(100):
            writer.append({"x": np.full(50, i)})
            if i >= 19 and i % 10 == 9:
                trajectory = {"x": writer.history["x"][-20:]}
                writer.create_item("table", 1.0, trajectory)
                writer.create_item("other", 1.0, trajectory)
    assert sum(batch.num_steps for batch in sent) == 100
    assert service.store.live_rows == 100
    client.reset("table")
    assert service.store.live_rows == 100
    client.reset("other")
    assert service.store.live_rows == 0


def test_steps_no_item_uses_are_not_sent(open_service, make_table):
    service, client = open_service(make_table(sampler=FIFO))
    with client.trajectory_writer(2) as writer:
        for i in range(100):
            writer.append({"x": i})
            if i % 50 == 25:
                writer.create_item("table", 1.0, {"x": writer.history["x"][-2:]})
                writer.flush()
    assert service.store.live_rows == 4
    assert next(client.sample("table", 1, emit_timesteps=False)).data[0].tolist() == [24, 25]


def test_going_back_behind_what_was_sent_begins_a_new_stream(open_service):
    service, client = open_service(replay.Table.queue("table", 100))
    with client.trajectory_writer(10) as writer:
        for i in range(8):
            writer.append({"x": i})
        writer.create_item("table", 1.0, {"x": writer.history["x"][-2:]})
        writer.flush()
        writer.create_item("table", 1.0, {"x": writer.history["x"][:3]})
        writer.flush()
        writer.append({"x": 8, "new": 1.0})
        writer.create_item("table", 1.0, {"x": writer.history["x"][-3:], "new": writer.history["new"][-1]})
    got = [[leaf.tolist() for leaf in item] for item in data(client, 3)]
    assert got == [[[6, 7]], [[0, 1, 2]], [1.0, [6, 7, 8]]]
    assert service.store.live_rows == 0


def test_closed_writers_refuse(client):
    writer = client.trajectory_writer(1)
    writer.append({"x": 0})
    writer.create_item("table", 1.0, {"x": writer.history["x"][:]})
    writer.close()
    writer.close()
    assert client.server_info()["table"].current_size == 1
    for call in (lambda: writer.append({"x": 1}), writer.flush, writer.end_episode):
        with pytest.raises(ReplayError, match="the writer is closed"):
            call()


def test_with_flushes_after_errors_of_users_but_not_of_the_service(client):
    def write(error):
        with client.trajectory_writer(1) as writer:
            writer.append({"x": 0})
            writer.create_item("table", 1.0, {"x": writer.history["x"][:]})
            writer.flush = lambda *_: flushed.append(error)
            raise error

    flushed = []
    for error in (KeyError(), ReplayError("full"), ConnectionBroken("gone")):
        with pytest.raises(type(error)):
            write(error)
    assert [type(error) for error in flushed] == [KeyError]


class FlakyBackend:
    """Answers when told to; loses streams when told to."""

    regions = None

    def __init__(self):
        self.sent = collections.deque()
        self.readiness = Future()

    def insert(self, batch):
        future = Future()
        self.sent.append((batch, future))
        return future

    def signature(self, table):
        return None

    def ready(self):
        return self.readiness

    def answer(self, error=None):
        batch, future = self.sent.popleft()
        future.set_exception(error) if error else future.set_result(None)
        return batch


def item(writer, value):
    writer.append({"x": value})
    writer.create_item("table", 1.0, {"x": writer.history["x"][-1]})


def test_items_of_a_lost_stream_are_sent_again_in_order():
    backend = FlakyBackend()
    writer = TrajectoryWriter(backend, 1)
    for value in range(130):
        item(writer, value)
    lost = [backend.answer(StreamLost("restarted")) for _ in range(len(backend.sent))]
    assert len(lost) >= 2
    item(writer, 130)  # notices
    assert len({batch.stream for batch in lost}) == 1
    again = [batch for batch, _ in backend.sent]
    assert len({batch.stream for batch in again} - {lost[0].stream}) >= 1
    steps = [step for batch in again for run in batch.runs for step in run.first_steps.tolist()]
    assert steps == sorted(steps)
    cells = {
        each.first_step + i: int(value)
        for batch in again
        for each in batch.cells
        for i, value in enumerate(each.values)
    }
    assert all(cells[step] == step for step in steps)
    assert again[0].columns is not None


def test_errors_are_raised_by_the_next_call_and_once():
    backend = FlakyBackend()
    writer = TrajectoryWriter(backend, 1)
    item(writer, 0)
    backend.answer(ValueError("server says no"))
    with pytest.raises(ValueError, match="server says no"):
        writer.append({"x": 1})
    writer.append({"x": 1})
    writer.create_item("table", 1.0, {"x": writer.history["x"][-1]})
    with pytest.raises(ReplayDeadlineExceeded):
        writer.flush(timeout_ms=0)
    assert backend.answer().columns is not None
    writer.flush()


def test_an_interrupt_is_not_kept_for_who_uses_the_writer_next():
    class Interrupted(FlakyBackend):
        def insert(self, batch):
            if not self.sent:
                super().insert(batch)
                raise SystemExit
            return super().insert(batch)

    backend = Interrupted()
    writer = TrajectoryWriter(backend, 1)
    with pytest.raises(SystemExit):
        item(writer, 0)
    with pytest.raises(ReplayDeadlineExceeded):
        writer.flush(timeout_ms=0)
    assert len(backend.sent) == 2, "sent once more: the first may not have left"
    backend.answer()
    backend.answer()
    writer.flush()


def test_a_quiet_writer_sends_at_once_a_busy_one_in_batches():
    backend = FlakyBackend()
    writer = TrajectoryWriter(backend, 1)
    item(writer, 0)
    assert len(backend.sent) == 1
    for value in range(100):
        item(writer, value)
    assert len(backend.sent) == 2
    assert sum(len(run.first_steps) for run in backend.sent[1][0].runs) == 100


def test_a_step_that_is_refused_leaves_nothing_behind(client):
    writer = client.trajectory_writer(3)
    for wrong in ({"a": np.zeros(3), "b": object()}, {"a": np.zeros(3), "b": 1 << 70}):
        with pytest.raises(TypeError, match=r"column b: .* cannot be stored"):
            writer.append(wrong)
    with pytest.raises(TypeError, match="column b: integers beyond 64 bits cannot be stored"):
        writer.append_batch({"a": np.zeros((2, 3)), "b": [1 << 70, 2]} | {"b": np.array([1 << 70, 2], object)})
    writer.append({"a": np.zeros(2, np.float32), "b": 7})  # another dtype and shape: no step had any
    writer.create_item("table", 1.0, {k: v[-1] for k, v in writer.history.items()})
    writer.flush()
    assert writer.episode_steps == 1
    assert data(client)[0][1] == 7


@pytest.mark.parametrize("times", [1, 2, 3])
def test_items_that_cannot_be_sent_again_at_once_keep_their_order(times):
    """A connection that breaks while lost items are sent again: those behind are still to be sent, in their order."""

    class Breaking(FlakyBackend):
        left = -1

        def insert(self, batch):
            self.left -= 1
            if self.left == 0:
                raise ConnectionBroken("cut")
            return super().insert(batch)

    backend = Breaking()
    backend.readiness.set_result(None)
    writer = TrajectoryWriter(backend, 1)
    for value in range(250):
        item(writer, value)
    assert len(backend.sent) == 3
    for _ in range(3):
        backend.answer(StreamLost("restarted"))
    backend.left = times
    with pytest.raises(ConnectionBroken):
        item(writer, 250)
    while backend.sent:
        backend.answer(StreamLost("restarted"))
    backend.left = -1
    with pytest.raises(ReplayDeadlineExceeded):
        writer.flush(timeout_ms=0)
    again = [batch for batch, _ in backend.sent]
    serials = [run.serial for batch in again for run in batch.runs]
    assert serials == sorted(serials)  # one of them may come twice: the table takes it once
    assert set(serials) == {0, 1, 101}
    while backend.sent:
        backend.answer()


@pytest.mark.parametrize("how", ["steps", "batches"])
def test_large_values_ask_for_no_memory_but_their_own(client, how):
    """Also those of the first step, and of columns that come later."""
    large = np.arange(8 << 20, dtype=np.uint8)
    writer = client.trajectory_writer(4)

    def append(**step):
        if how == "steps":
            writer.append(step)
        else:
            writer.append_batch({name: np.asarray(value)[None] for name, value in step.items()})

    def asked_for():
        return sum(array.nbytes for chunk in writer._buffer._chunks for array in chunk.arrays.values())

    append(x=large)
    assert asked_for() < 2 * large.nbytes
    append(n=1)
    append(n=2, y=large, z=large[::-1])
    append(n=3, y=large, z=large[::-1])
    assert asked_for() < 8 * large.nbytes
    history = writer.history
    writer.create_item("table", 1.0, {"x": history["x"][0], "n": history["n"][-3:], "z": history["z"][-2:]})
    writer.flush()
    numbers, x, z = data(client)[0]
    assert numbers.tolist() == [1, 2, 3]
    assert (x == large).all()
    assert (z == large[::-1]).all()
