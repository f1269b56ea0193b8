"""What Reverb's own tests check of writers, columns and patterns, through its names, and what users report of them."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from topology.compat import provided
from topology.nodes.replay import Spec
from topology.nodes.replay.structure import flatten, unflatten

with provided():
    import reverb
    from reverb import errors, structured_writer, trajectory_writer
    from reverb.cc import patterns_pb2
    from reverb.structured_writer import Condition

pytestmark = pytest.mark.usefixtures("provided")

TABLES = [f"queue_{i}" for i in range(5)]


@pytest.fixture
def client() -> Iterator[Any]:
    server = reverb.Server([reverb.Table.queue(name, 100) for name in TABLES] + [reverb.Table.queue("one", 1)])
    client = reverb.Client(f"localhost:{server.port}")
    yield client
    client.close()
    server.stop()


@pytest.fixture
def writer(client: Any) -> Iterator[Any]:
    writer = client.trajectory_writer(num_keep_alive_refs=10)
    yield writer
    writer.close()


def map_structure(function: Callable[[Any], Any], tree: Any) -> Any:
    leaves, shape = flatten(tree)
    return unflatten(shape, [function(leaf) for leaf in leaves])


def content(history: Any) -> Any:
    return map_structure(lambda column: [None if cell is None else cell.numpy().item() for cell in column], history)


def items(client: Any, table: str) -> list[Any]:
    size = client.server_info()[table].current_size
    return [sample.data for sample in client.sample(table, size, emit_timesteps=False)] if size else []


# -- trajectory writers -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("validate", [True, False])
def test_items_are_checked_only_where_that_is_asked_for(validate: bool, tmp_path: Any) -> None:
    """TF-Agents' observers ask for none, and write items that have more than the table's signature says."""

    def serve() -> Any:
        checkpointer = reverb.checkpointers.DefaultCheckpointer(str(tmp_path))
        table = reverb.Table.queue("queue", 10, signature={"a": Spec((1,), np.int64)})
        return reverb.Server([table], checkpointer=checkpointer)

    server = serve()
    with reverb.Client(f"localhost:{server.port}") as client:
        writer = client.trajectory_writer(1, validate_items=validate)
        writer.append({"a": 1, "b": 2.0})
        more = {name: column[-1:] for name, column in writer.history.items()}
        with pytest.raises(ValueError, match="signature") if validate else contextlib.nullcontext():
            writer.create_item("queue", 1.0, more)
        writer.create_item("queue", 1.0, {"a": writer.history["a"][-1:]})
        writer.flush()
        writer.close()
        client.checkpoint()
    server.stop()
    server = serve()
    with reverb.Client(f"localhost:{server.port}") as client:
        assert [len(columns) for columns in items(client, "queue")] == ([1] if validate else [2, 1])
    server.stop()


def test_history_grows_with_the_structure_of_the_steps(writer: Any) -> None:
    with pytest.raises(RuntimeError):
        _ = writer.history
    steps = [{"x": 1, "z": 2}, {"z": 3, "y": 4}, {"w": 5}, {"x": 6, "w": 7}]
    seen = []
    for step in steps:
        writer.append(step)
        seen.append(content(writer.history))
    assert seen == [
        {"x": [1], "z": [2]},
        {"x": [1, None], "z": [2, 3], "y": [None, 4]},
        {"x": [1, None, None], "z": [2, 3, None], "y": [None, 4, None], "w": [None, None, 5]},
        {"x": [1, None, None, 6], "z": [2, 3, None, None], "y": [None, 4, None, None], "w": [None, None, 5, 7]},
    ]
    assert all(writer.history[name]._path == (name,) for name in writer.history)


@pytest.mark.parametrize(("first", "second"), [((0,), (0, 1)), ({"x": 0}, {"x": 0, "y": 1}), ([0], [0, 1]), (0, 1)])
def test_later_steps_may_have_more_fields(writer: Any, first: Any, second: Any) -> None:
    writer.append(first)
    writer.append(second)
    assert len(flatten(writer.history)[0]) == len(flatten(second)[0])


def test_partial_steps_fill_one_step(writer: Any) -> None:
    writer.append({"x": 1, "z": 2}, partial_step=True)
    writer.append({"x": None, "y": 4}, partial_step=True)
    assert content(writer.history) == {"x": [1], "z": [2], "y": [4]}
    text = (
        r"Field \('x',\) has already been set in the active step by previous \(partial\) append call and thus must be "
        r"omitted or set to None but got: 4"
    )
    with pytest.raises(ValueError, match=text):
        writer.append({"x": 4})
    writer.append({"w": 5})
    writer.append({"w": 6})
    assert content(writer.history) == {"x": [1, None], "z": [2, None], "y": [4, None], "w": [5, 6]}


@pytest.mark.parametrize("clear", [True, False])
def test_episode_steps(writer: Any, clear: bool) -> None:
    for _ in range(3):
        assert writer.episode_steps == 0
        for count in range(1, 4):
            writer.append({"x": 3}, partial_step=True)
            assert writer.episode_steps == count - 1
            writer.append({"y": 2})
            assert writer.episode_steps == count
        writer.end_episode(clear_buffers=clear)


def test_leaves_of_items_are_columns(writer: Any) -> None:
    for _ in range(2):
        writer.append({"x": 3, "y": 2})
    writer.create_item(TABLES[0], 1.0, {"x": writer.history["x"][0], "y": writer.history["y"][:]})
    with pytest.raises(TypeError):
        writer.create_item(TABLES[0], 1.0, {"x": writer.history["x"][0], "y": writer.history["y"][:].numpy()})
    writer.flush(1)
    with pytest.raises(ValueError, match="block_until_num_items must be >= 0, got -1"):
        writer.flush(-1)


def test_history_is_indexed_by_ints_slices_and_lists(client: Any, writer: Any) -> None:
    for value in (1, 2, 3):
        writer.append({"x": value})
    column = writer.history["x"]
    for index in (0, -1, slice(None, 2), slice(-2, None), [0, -1], [1, 0, 2]):
        writer.create_item(TABLES[0], 1.0, {"x": column[index]})
    writer.flush()
    assert [data[0].tolist() for data in items(client, TABLES[0])] == [1, 3, [1, 2], [2, 3], [1, 3], [2, 1, 3]]


def test_history_does_not_reach_back_beyond_its_beginning(writer: Any) -> None:
    for value in range(3):
        writer.append({"x": value})
    column = writer.history["x"]
    assert column[-3:].numpy().tolist() == column[:9].numpy().tolist() == [0, 1, 2]
    for index in (slice(-4, None), slice(-4, -1), slice(-5, None, 2), -4):
        with pytest.raises(ValueError, match=r"cannot contain None: index -\d reaches back beyond the 3 steps"):
            column[index]
    with pytest.raises(IndexError):
        column[3]
    writer.append({"x": 3})
    assert column[-4:].numpy().tolist() == [0, 1, 2, 3]
    writer.end_episode()
    writer.append({"x": 4})
    with pytest.raises(ValueError, match="cannot contain None"):
        writer.history["x"][-2:]


def test_cells_say_whether_they_have_expired(client: Any) -> None:
    with client.trajectory_writer(1) as writer:
        writer.append([1])
        first = writer.history[0][-1]
        assert not first.expired
        writer.end_episode()
        assert first.expired


@pytest.mark.parametrize(
    ("keep", "chunk", "is_valid"),
    [
        (1, None, True),
        (0, None, False),
        (-1, None, False),
        (1, 1, True),
        (1, 0, False),
        (1, -1, False),
        (5, 5, True),
        (4, 5, False),
    ],
)
@pytest.mark.parametrize("seen", [True, False])
def test_configure(writer: Any, keep: int, chunk: int | None, is_valid: bool, seen: bool) -> None:
    writer.append({"a" if seen else "b": 1})
    if is_valid:
        writer.configure(("a",), num_keep_alive_refs=keep, max_chunk_length=chunk)
        return
    with pytest.raises(ValueError, match="num_keep_alive_refs"):
        writer.configure(("a",), num_keep_alive_refs=keep, max_chunk_length=chunk)


@pytest.mark.parametrize("method", ["flush", "end_episode"])
def test_timeouts_leave_the_writer_usable(client: Any, method: str) -> None:
    created = 0
    with client.trajectory_writer(num_keep_alive_refs=1) as writer:
        writer.append([0])

        def write() -> None:
            nonlocal created
            for _ in range(4):
                writer.create_item("one", 1.0, writer.history[0][:])
                created += 1
                if method == "flush":
                    writer.flush(timeout_ms=1)
                else:
                    writer.end_episode(clear_buffers=False, timeout_ms=1)

        text = r"call did not complete within provided timeout of 0:00:00\.001"
        with pytest.raises(errors.DeadlineExceededError, match=text):
            write()
        assert len(list(client.sample("one", created))) == created
        writer.append([1])
        writer.create_item("one", 1.0, writer.history[0][-1:])
        writer.flush()
        assert next(client.sample("one"))[0].data[0] == 1


def test_leaving_a_writer_flushes_but_not_after_an_error_of_reverb(client: Any) -> None:
    def leave(error: Exception | None) -> int:
        flushed: list[int] = []
        with contextlib.suppress(ValueError, errors.ReverbError), client.trajectory_writer(1) as writer:
            writer.flush = lambda *_: flushed.append(1)
            if error:
                raise error
        return len(flushed)

    assert leave(None) == 1
    assert leave(ValueError("mine")) == 1
    assert leave(errors.DeadlineExceededError("its")) == 0


@pytest.mark.parametrize(
    ("step", "text"),
    [
        ({"scalar": 1.0}, r"wrong dtype provided for column \('scalar',\)\. Got double but expected int64\."),
        ({"nest": {"sub": 1}}, r"wrong dtype provided for column \('nest', 'sub'\)\. Got int64 but expected double\."),
        ({"nest": {"list": [1, 2.0]}}, r"column \('nest', 'list', 1\)\. Got double but expected int64\."),
        (
            {"scalar": np.arange(2)},
            r"incompatible shape provided for column \('scalar',\)\. Got \[2\] which is incompatible with \[\]\.",
        ),
        ({"array": np.zeros((1, 2))}, r"column \('array',\)\. Got \[1,2\] which is incompatible with \[2\]\."),
    ],
)
def test_steps_that_differ_are_refused_with_path_and_both_sides(writer: Any, step: Any, text: str) -> None:
    first = {"scalar": 1, "array": np.zeros(2), "nest": {"sub": 1.0, "list": [1, 2]}}
    writer.append(first)
    with pytest.raises(ValueError, match=text):
        writer.append({**first, **step, "nest": {**first["nest"], **step.get("nest", {})}})


def test_columns_of_history_as_arrays(writer: Any) -> None:
    for i in range(5):
        writer.append({"a": i, "b": np.ones((3, 3)) * i})
        np.testing.assert_array_equal(writer.history["a"][:].numpy(), np.arange(i + 1))
        assert writer.history["b"][:].numpy().shape == writer.history["b"][:].shape == (i + 1, 3, 3)
        assert writer.history["a"][-1].numpy() == i
        assert writer.history["b"][-1].shape == (3, 3)
        assert writer.history["b"][-1].dtype == np.float64
    writer.append({"c": 1})
    with pytest.raises(ValueError, match="None"):
        _ = writer.history["c"][:]


class Cell:
    """A cell of the program's own."""

    def __init__(self, data: Any) -> None:
        self._data = np.asarray(data)
        self.shape, self.dtype = self._data.shape, self._data.dtype

    def numpy(self) -> Any:
        return self._data


def test_columns_can_be_made_of_cells(client: Any, writer: Any) -> None:
    column = trajectory_writer.TrajectoryColumn
    for wrong in ([], [Cell(1), Cell(2)]):
        with pytest.raises(ValueError, match="squeeze"):
            column(wrong, squeeze=True)
    for cells in ([None], [Cell(1), None]):
        with pytest.raises(ValueError, match="cannot contain any None"):
            column(cells)
    for data in (0, 1.0, True, np.zeros((3, 4, 2), np.float16), np.zeros((), object)):
        for count in range(1, 4):
            made = column([Cell(data)] * count)
            assert len(made) == count
            assert made.shape == (count, *np.shape(data))
            assert made.dtype == np.asarray(data).dtype
    assert column([Cell(np.zeros((2, 5)))], squeeze=True).shape == (2, 5)
    for i in range(4):
        writer.append([i])
    cells = list(writer.history[0])
    writer.create_item(TABLES[0], 1.0, [column(cells[1:3]), column(cells[3:], squeeze=True)])
    writer.flush()
    assert [leaf.tolist() for leaf in items(client, TABLES[0])[0]] == [[1, 2], 3]
    assert isinstance(writer.history[0][:], reverb.TrajectoryColumn)


# -- structured writers -----------------------------------------------------------------------------------------------

STEP = {"a": np.zeros([], np.float32), "b": {"c": np.zeros([2, 2], np.int32), "d": [np.zeros([3], np.int64)] * 2}}
REF = structured_writer.create_reference_step(STEP)
SINGLE = structured_writer.pattern_from_transform(step_structure=None, transform=lambda x: x[-1])


def written(client: Any, configs: Any, steps: Any) -> list[Any]:
    with client.structured_writer(configs) as writer:
        for step in steps:
            writer.append(step)
        writer.end_episode()
    return items(client, TABLES[0])


@pytest.mark.parametrize(
    ("condition", "count", "wanted"),
    [
        (Condition.step_index() <= 2, 10, [0, 1, 2]),
        (Condition.step_index() >= 5, 10, [5, 6, 7, 8, 9]),
        (Condition.step_index() == 3, 10, [3]),
        (Condition.step_index() != 3, 10, [0, 1, 2, 4, 5, 6, 7, 8, 9]),
        (Condition.step_index() % 3 == 0, 10, [0, 3, 6, 9]),
        (Condition.step_index() % 3 != 0, 10, [1, 2, 4, 5, 7, 8]),
        (Condition.steps_since_applied() >= 4, 10, [3, 7]),
        (Condition.steps_since_applied() >= 3, 10, [2, 5, 8]),
        (Condition.is_end_episode(), 5, [4]),
        (Condition.data(None) == 3, 5, [3]),
        (Condition.data(None) != 3, 5, [0, 1, 2, 4]),
        (Condition.data(None) > 2, 5, [3, 4]),
    ],
)
def test_conditions_decide_which_steps_become_items(client: Any, condition: Any, count: int, wanted: list[int]) -> None:
    config = structured_writer.create_config(pattern=SINGLE, table=TABLES[0], conditions=[condition])
    assert [data[0].tolist() for data in written(client, [config], range(count))] == wanted


@pytest.mark.parametrize(
    ("pattern", "wanted"),
    [
        (
            {"x": REF["a"][-3], "y": REF["b"]["c"][-2:], "z": REF["b"]["d"][0][-1]},
            [[i, [[[i + 1] * 2] * 2, [[i + 2] * 2] * 2], [i + 2] * 3] for i in range(3)],
        ),
        ({"older": REF["a"][-3:-1], "last": REF["a"][-1]}, [[i + 2, [i, i + 1]] for i in range(3)]),
        ({"every_second": REF["a"][-5::2]}, [[[0, 2, 4]]]),
    ],
)
def test_patterns_make_the_right_items(client: Any, pattern: Any, wanted: Any) -> None:
    config = structured_writer.create_config(pattern=pattern, table=TABLES[0], conditions=[])
    steps = [map_structure(lambda x, i=i: np.ones_like(x) * i, STEP) for i in range(5)]
    assert [[leaf.tolist() for leaf in data] for data in written(client, [config], steps)] == wanted


def test_configs_have_the_fields_of_the_original(client: Any) -> None:
    pattern = {"x": REF["a"][-3:-1], "y": (REF["b"]["c"][-1], REF["a"][-4::2])}
    every_second = Condition.step_index() % 2 == 1
    config = structured_writer.create_config(pattern, TABLES[0], [every_second])
    assert (config.table, config.priority, list(config.conditions)) == (TABLES[0], 1.0, [every_second])
    assert config.HasField("pattern_structure")
    fields = [
        (node.flat_source_index, *(getattr(node, name) if node.HasField(name) else None for name in NODE_FIELDS))
        for node in config.flat
    ]
    assert fields == [(0, -3, -1, None), (1, None, -1, None), (0, -4, None, 2)]
    other = structured_writer.create_config({"x": REF["a"][-2:], "y": (REF["b"]["c"][-1], REF["a"][-1])}, "other")
    assert other.pattern_structure == config.pattern_structure
    assert structured_writer.create_config({"z": REF["a"][-1]}, "t").pattern_structure != config.pattern_structure
    for wrong in (config.HasField, config.flat[0].HasField):
        with pytest.raises(ValueError, match="not 'table'"):
            wrong("table")


NODE_FIELDS = "start", "stop", "step"


@pytest.mark.parametrize(
    ("fields", "wanted"),
    [
        ({"step_index": True, "ge": 2}, Condition.step_index() >= 2),
        ({"step_index": True, "ge": 3, "inverse": True}, Condition.step_index() < 3),
        ({"steps_since_applied": True, "eq": 4}, Condition.steps_since_applied() == 4),
        ({"step_index": True, "mod_eq": patterns_pb2.Condition.ModuloEq(mod=3, eq=1)}, Condition.step_index() % 3 == 1),
        ({"is_end_episode": True, "eq": 1}, Condition.is_end_episode()),
        ({"flat_source_index": 1, "eq": 0, "inverse": True}, Condition.data([None, None])[1] != 0),
    ],
)
def test_conditions_are_made_of_the_fields_of_the_original(fields: dict[str, Any], wanted: Any) -> None:
    made = patterns_pb2.Condition(**fields)
    assert made == wanted
    assert isinstance(made, patterns_pb2.Condition)


def test_a_config_is_made_of_the_fields_of_the_original(client: Any) -> None:
    node = patterns_pb2.PatternNode(flat_source_index=0, start=-2)
    config = structured_writer.Config(
        flat=[node], table=TABLES[0], priority=2.0, conditions=[patterns_pb2.Condition(step_index=True, ge=2)]
    )
    assert isinstance(config, structured_writer.Config)
    assert isinstance(node, patterns_pb2.PatternNode)
    assert [data[0].tolist() for data in written(client, [config], range(4))] == [[1, 2], [2, 3]]
    named = structured_writer.create_config({"z": REF["a"][-1]}, "t")
    again = patterns_pb2.StructuredWriterConfig(flat=[node], pattern_structure=named.pattern_structure, table="t")
    assert structured_writer.unpack_pattern(again) == {"z": node}
    for wrong in ({}, {"step_index": True, "is_end_episode": True}, {"step_index": True, "eq": 1, "ge": 1}):
        with pytest.raises(ValueError, match="looks at one thing and makes one comparison"):
            patterns_pb2.Condition(**wrong)


def test_conditions_on_data_of_other_columns_and_round_robin(client: Any) -> None:
    reference = structured_writer.create_reference_step({"x": None, "keep": None})
    keep = Condition.data({"x": None, "keep": None})["keep"] == True  # noqa: E712
    config = structured_writer.create_config({"x": reference["x"][-1]}, TABLES[0], [keep])
    steps = [{"x": i, "keep": i % 2 == 0} for i in range(5)]
    assert [data[0].tolist() for data in written(client, [config], steps)] == [0, 2, 4]
    configs = [
        structured_writer.create_config(SINGLE, table, [Condition.step_index() % len(TABLES) == i])
        for i, table in enumerate(TABLES)
    ]
    written(client, configs, range(10))
    assert [data[0].tolist() for table in TABLES[1:] for data in items(client, table)] == [1, 6, 2, 7, 3, 8, 4, 9]


def test_whether_a_step_is_open(client: Any) -> None:
    reference = structured_writer.create_reference_step({"x": None, "y": None})
    config = structured_writer.create_config({"x": reference["x"][-1]}, TABLES[0])
    with client.structured_writer([config]) as writer:
        assert not writer.step_is_open
        writer.append({"x": 1, "y": None}, partial_step=True)
        assert writer.step_is_open
        writer.append({"x": None, "y": 2})
        assert not writer.step_is_open
        writer.append({"x": 1, "y": None}, partial_step=True)
        writer.end_episode()
        assert not writer.step_is_open


@pytest.mark.parametrize(
    ("step", "text"),
    [
        ({"a": 1, "b": 1}, r"wrong dtype provided for column 1 \(path=\('b',\)\)\. Got int64 but expected double\."),
        (
            {"a": 1, "b": np.zeros(3)},
            r"incompatible shape provided for column 1 \(path=\('b',\)\)\. Got \[3\] which is incompatible with \[\]\.",
        ),
        ({"a": 1, "b": 1.0, "c": 2}, r"Flattened data has an unexpected length, got 3 but wanted 2\."),
    ],
)
def test_structured_steps_that_differ_are_refused(client: Any, step: Any, text: str) -> None:
    reference = structured_writer.create_reference_step({"a": None, "b": None})
    pattern = {"a": reference["a"][-1], "b": reference["b"][-1]}
    with client.structured_writer([structured_writer.create_config(pattern, TABLES[0])]) as writer:
        writer.append({"a": 1, "b": 1.0})
        with pytest.raises(ValueError, match=text):
            writer.append(step)


def test_priorities_of_td_errors(client: Any) -> None:
    step = {"td": None, "x": None}
    reference = structured_writer.create_reference_step(step)
    config = structured_writer.create_config(
        {"x": reference["x"][-3:]},
        TABLES[0],
        priority=structured_writer.td_error(0.9, step, lambda s: s["td"]),
    )
    with client.structured_writer([config]) as writer:
        for td in (1.0, -3.0, 2.0):
            writer.append({"td": td, "x": 0})
    (sample,) = next(client.sample(TABLES[0]))[:1]
    assert sample.info.priority == pytest.approx(0.9 * 3 + 0.1 * 2)


@pytest.mark.parametrize(
    ("patterns", "wanted"),
    [
        ([{"older": REF["a"][-3:-1], "last": REF["a"][-1]}], {"older": Spec((2,), "f4"), "last": Spec((), "f4")}),
        ([{"x": {"y": REF["b"]["c"][-6::2]}}], {"x": {"y": Spec((3, 2, 2), "i4")}}),
        ([{"x": REF["a"][-3:-1]}, {"x": REF["a"][-2:]}], {"x": Spec((2,), "f4")}),
        ([{"x": REF["a"][-3:-1]}, {"x": REF["a"][-3:]}], {"x": Spec((None,), "f4")}),
    ],
)
def test_signatures_of_configs(patterns: Any, wanted: Any) -> None:
    configs = [structured_writer.create_config(pattern, "table") for pattern in patterns]
    assert wanted == structured_writer.infer_signature(configs, STEP)
    assert structured_writer.unpack_pattern(configs[0]) == patterns[0]


@pytest.mark.parametrize(
    ("configs", "text"),
    [
        ([], r"At least one config must be provided\."),
        (
            [("a", {"x": "a"}), ("b", {"x": "a"})],
            r"same table but provided configs included a, b\.",
        ),
        ([("a", {"x": "a"}), ("a", {"y": "a"})], r"All configs must have exactly the same pattern_structure\."),
        (
            [("a", {"x": "a"}), ("a", {"x": "b"})],
            r"trajectories with multiple dtypes at \('x',\)\. Got .*",
        ),
        (
            [("a", {"x": "a"}), ("a", {"x": "c"})],
            r"trajectories with incompatible shapes at \('x',\)\. Got .*",
        ),
        (
            [("a", {"x": "d"}), ("a", {"x": "e"})],
            r"trajectories with incompatible shapes at \('x',\)\. Got .*",
        ),
    ],
)
def test_configs_that_do_not_go_together(configs: Any, text: str) -> None:
    step = {
        "a": np.zeros([], np.float32), "b": np.zeros([], np.float64), "c": np.zeros([1], np.float32),
        "d": np.zeros([1, 2], np.float32), "e": np.zeros([1, 3], np.float32),
    }  # fmt: skip
    reference = structured_writer.create_reference_step(step)
    made = [structured_writer.create_config({k: reference[v][-1] for k, v in p.items()}, table) for table, p in configs]
    with pytest.raises(ValueError, match=text):
        structured_writer.infer_signature(made, step)


# -- what users report ------------------------------------------------------------------------------------------------


def test_a_loop_of_one_thread_never_waits_for_what_can_sample_allows() -> None:
    limiter = reverb.rate_limiters.SampleToInsertRatio(samples_per_insert=4.0, min_size_to_sample=8, error_buffer=32.0)
    table = reverb.Table(
        "replay", reverb.selectors.Uniform(), reverb.selectors.Fifo(), 1000, limiter, signature=Spec((1,), "i8")
    )
    server = reverb.Server([table])
    client = reverb.Client(f"localhost:{server.port}")
    dataset = reverb.TrajectoryDataset.from_table_signature(client.server_address, "replay", 1)
    batches = dataset.batch(16).as_numpy_iterator()
    learned = 0
    with client.trajectory_writer(1) as writer:
        for i in range(60):
            writer.append(i)
            writer.create_item("replay", 1.0, writer.history[-1:])
            writer.flush()
            while table.can_sample(16):
                assert next(batches).data.shape == (16, 1)
                learned += 1
    assert learned == 60 * 4 // 16
    del batches
    client.close()
    server.stop()


def test_a_server_that_stops_wakes_those_who_sample() -> None:
    server = reverb.Server([reverb.Table.queue("queue", 1)])
    raised: list[BaseException] = []

    def sample() -> None:
        with reverb.Client(f"localhost:{server.port}") as client:
            try:
                next(client.sample("queue"))
            except BaseException as error:
                raised.append(error)

    threads = [threading.Thread(target=sample) for _ in range(8)]
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + 20
    with server.localhost_client() as client:
        while client.server_info()["queue"].rate_limiter_info.sample_stats.pending < 8:
            assert time.monotonic() < deadline
    server.stop()
    for thread in threads:
        thread.join(20)
    assert len(raised) == 8
    assert all(isinstance(error, RuntimeError) for error in raised)


def test_items_whose_columns_differ_in_length(client: Any, writer: Any) -> None:
    for i in range(4):
        writer.append({"o": np.full(2, i), "a": i})
    writer.create_item(TABLES[0], 1.0, {"o": writer.history["o"][-4:], "a": writer.history["a"][-4:-1]})
    writer.flush()
    assert [leaf.shape for leaf in items(client, TABLES[0])[0]] == [(3,), (4, 2)]


def test_datasets_of_items_whose_columns_differ_in_length() -> None:
    signature = {"o": Spec((None, 2), "i8"), "a": Spec((None,), "i8")}
    server = reverb.Server([reverb.Table.queue("queue", 10, signature=signature)])
    with reverb.Client(f"localhost:{server.port}") as client:
        with client.trajectory_writer(4) as writer:
            for i in range(4):
                writer.append({"o": np.full(2, i), "a": i})
            for n in (2, 4):
                writer.create_item("queue", 1.0, {"o": writer.history["o"][-n:], "a": writer.history["a"][-n:-1]})
        dataset = reverb.TrajectoryDataset.from_table_signature(
            client.server_address, "queue", 4, rate_limiter_timeout_ms=0
        )
        found = [(len(sample.data["o"]), sample.data["a"].tolist()) for sample in dataset.as_numpy_iterator()]
    assert found == [(2, [2]), (4, [0, 1, 2])]
    server.stop()
