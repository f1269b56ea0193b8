import numpy as np
import pytest

from topology import errors
from topology.nodes import replay
from topology.nodes.replay import structured_writer as sw
from topology.nodes.replay.service import ReplayService

STEP = {
    "a": np.zeros([], np.float32),
    "b": {"c": np.zeros([2, 2], np.int32), "d": [np.zeros([3], np.int64), np.zeros([6], np.int64)]},
}
REF = sw.create_reference_step(STEP)
LAST = sw.pattern_from_transform(None, lambda x: x[-1])
TABLES = [f"queue_{i}" for i in range(5)]
Condition = sw.Condition


@pytest.fixture
def client():
    service = ReplayService([replay.Table.queue(name, 100) for name in TABLES])
    yield replay.Client("memory:test", service=service)
    service.close()


def content(client, table=TABLES[0]):
    size = client.server_info()[table].current_size
    return [client.sample_batch(table, 1).data for _ in range(size)]


def step(value):
    return {
        "a": np.float32(value),
        "b": {
            "c": np.full([2, 2], value, np.int32),
            "d": [np.full([3], value, np.int64), np.full([6], value, np.int64)],
        },
    }


@pytest.mark.parametrize(
    ("condition", "num_steps", "expected"),
    [
        (Condition.step_index() <= 2, 10, [0, 1, 2]),
        (Condition.step_index() < 2, 10, [0, 1]),
        (Condition.step_index() >= 5, 10, [5, 6, 7, 8, 9]),
        (Condition.step_index() > 7, 10, [8, 9]),
        (Condition.step_index() == 3, 10, [3]),
        (Condition.step_index() != 3, 10, [0, 1, 2, 4, 5, 6, 7, 8, 9]),
        (Condition.step_index() % 3 == 0, 10, [0, 3, 6, 9]),
        (Condition.step_index() % 3 != 0, 10, [1, 2, 4, 5, 7, 8]),
        (Condition.steps_since_applied() >= 4, 10, [3, 7]),
        (Condition.steps_since_applied() >= 3, 10, [2, 5, 8]),
        (Condition.is_end_episode(), 5, [4]),
    ],
)
def test_single_conditions(client, condition, num_steps, expected):
    writer = client.structured_writer([sw.create_config(LAST, TABLES[0], [condition])])
    for episode in range(2):
        for i in range(num_steps):
            writer.append(i)
        writer.end_episode()
        assert [int(data[0]) for data in content(client)] == expected, episode


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        (
            {"x": REF["a"][-3], "y": REF["b"]["c"][-2:], "z": REF["b"]["d"][0][-1]},
            [([0], [1, 2], [2]), ([1], [2, 3], [3])],
        ),
        ({"older": REF["a"][-3:-1], "last": REF["a"][-1]}, [([2], [0, 1]), ([3], [1, 2])]),
        ({"every_second": REF["a"][-4::2]}, [([0, 2],)]),
    ],
)
def test_patterns(client, pattern, expected):
    with client.structured_writer([sw.create_config(pattern, TABLES[0])]) as writer:
        for i in range(4):
            writer.append(step(i))
    for data, values in zip(content(client), expected, strict=True):
        assert data.keys() == pattern.keys()
        for key, wanted in zip(sorted(data), values, strict=True):
            array = data[key][0].reshape(len(wanted) if pattern[key].length else 1, -1)
            assert array.tolist() == [[value] * array.shape[1] for value in wanted]


def test_round_robin_into_tables(client):
    configs = [sw.create_config(LAST, name, [Condition.step_index() % 5 == i]) for i, name in enumerate(TABLES)]
    writer = client.structured_writer(configs)
    for i in range(10):
        writer.append(i)
    writer.end_episode()
    assert [[int(d[0]) for d in content(client, name)] for name in TABLES] == [[i, i + 5] for i in range(5)]


@pytest.mark.parametrize(
    ("make_pattern", "make_condition", "steps", "expected"),
    [
        (lambda x: x["a"][-2], lambda x: x["b"] > 10, [(1, 11), (2, 10), (3, 11), (4, 9), (5, 12)], [2, 4]),
        (lambda x: x["a"][-1], lambda x: x["b"] == 1, [(1, True), (2, False), (4, True), (5, False)], [1, 4]),
        (lambda x: x["a"][-1], lambda x: x["a"] != 4, [(2, 0), (4, 0), (5, 0)], [2, 5]),
        (lambda x: x["a"][-1], lambda x: x["b"] < 0.5, [(2, 0.25), (4, 0.75), (5, 0.0)], [2, 5]),
    ],
)
def test_conditions_on_data(client, make_pattern, make_condition, steps, expected):
    spec = {"a": None, "b": None}
    pattern = sw.pattern_from_transform(spec, make_pattern)
    config = sw.create_config(pattern, TABLES[0], [make_condition(Condition.data(spec))])
    with client.structured_writer([config]) as writer:
        for a, b in steps:
            writer.append({"a": a, "b": b})
    assert [int(data[0]) for data in content(client)] == expected


def test_a_condition_needs_a_number(client):
    spec = {"a": None}
    config = sw.create_config(
        sw.pattern_from_transform(spec, lambda x: x["a"][-1]), TABLES[0], [Condition.data(spec)["a"] > 0]
    )
    writer = client.structured_writer([config])
    with pytest.raises(ValueError, match=r"needs a single number, leaf 0 of the step is int64\[2\]"):
        writer.append({"a": np.array([1, 2])})


def test_partial_steps(client):
    reference = sw.create_reference_step([None, None, None])
    writer = client.structured_writer([sw.create_config([r[-1] for r in reference], TABLES[0])])
    assert not writer.step_is_open
    writer.append([1, 1, 1])
    assert not writer.step_is_open
    writer.append([None, 2, None], partial_step=True)
    assert writer.step_is_open
    writer.append([None, None, 2], partial_step=True)
    assert writer.step_is_open
    writer.append([2, None, None])
    assert not writer.step_is_open
    writer.append([None, 3, None], partial_step=True)
    writer.end_episode()
    assert not writer.step_is_open
    assert [[int(x[0]) for x in data] for data in content(client)] == [[1, 1, 1], [2, 2, 2]]


def test_an_item_can_be_made_of_an_open_step_and_only_once(client):
    reference = sw.create_reference_step({"o": None, "a": None})
    writer = client.structured_writer([sw.create_config({"o": reference["o"][-1]}, TABLES[0])])
    writer.append({"o": 1, "a": None}, partial_step=True)
    writer.flush()
    assert client.server_info()[TABLES[0]].current_size == 1
    writer.append({"o": None, "a": 2})
    writer.flush()
    assert client.server_info()[TABLES[0]].current_size == 1


def test_buffers_that_are_kept_span_episodes(client):
    reference = sw.create_reference_step(None)
    writer = client.structured_writer([sw.create_config(reference[-2:], TABLES[0])])
    writer.append(1)
    writer.end_episode(clear_buffers=False)
    writer.append(2)
    writer.end_episode()
    writer.append(3)
    writer.end_episode()
    assert [data[0].tolist() for data in content(client)] == [[1, 2]]


def test_td_error(client):
    spec = {"a": None, "td": None}
    config = sw.create_config(
        sw.pattern_from_transform(spec, lambda x: {"a": x["a"][-3:]}),
        TABLES[0],
        priority=sw.td_error(0.75, spec, lambda x: x["td"]),
    )
    with client.structured_writer([config]) as writer:
        for a, td in enumerate([1.0, -5.0, 0.0, 3.0]):
            writer.append({"a": a, "td": td})
    priorities = client.sample_batch(TABLES[0], 2).info.priority
    np.testing.assert_allclose(priorities, [0.75 * 5 + 0.25 * 2, 0.75 * 5 + 0.25 * 8 / 3])
    with pytest.raises(ValueError, match="max_priority_weight must be in"):
        sw.td_error(1.5, spec, lambda x: x["td"])
    with pytest.raises(ValueError, match="one leaf of the step"):
        sw.td_error(0.5, spec, lambda x: x)


def test_steps_must_stay_as_they_are(client):
    config = sw.create_config({"x": REF["a"][-1], "y": REF["b"]["c"][-1]}, TABLES[0])
    writer = client.structured_writer([config])
    writer.append(step(0))
    with pytest.raises(ValueError, match=r"column 0 holds <float32\[\]>.* has <float64\[\]>"):
        writer.append({**step(1), "a": np.float64(1)})
    with pytest.raises(ValueError, match=r"column 1 holds <int32\[2, 2\]>.* has <int32\[3\]>"):
        writer.append({**step(1), "b": {**step(1)["b"], "c": np.zeros(3, np.int32)}})
    with pytest.raises(ValueError, match="the first had 4 leaves, this one has 1"):
        writer.append({"a": np.float32(1)})
    with pytest.raises(ValueError, match="a config uses leaf 1 of the steps, but they have 1 leaves"):
        client.structured_writer([config]).append({"a": np.float32(1)})


def test_bad_patterns_and_configs(client):
    for make in (lambda: REF["a"][0], lambda: REF["a"][2:], lambda: REF["a"][-1:-3], lambda: REF["a"][-3:1]):
        with pytest.raises(ValueError, match="newest step"):
            make()
    with pytest.raises(ValueError, match="step of a slice"):
        REF["a"][-3::-1]
    with pytest.raises(ValueError, match="needs a start"):
        REF["a"][:-1]
    with pytest.raises(ValueError, match="ints and slices"):
        REF["a"]["x"]
    with pytest.raises(ValueError, match="modulus"):
        Condition.step_index() % 0
    with pytest.raises(ValueError, match="name of a table"):
        sw.create_config({"x": REF["a"][-1]}, "")
    with pytest.raises(ValueError, match="is empty"):
        sw.create_config({}, "table")
    with pytest.raises(ValueError, match="made by indexing a reference step"):
        sw.create_config({"x": REF["a"]}, "table")
    with pytest.raises(ValueError, match="conditions for table 'table' are comparisons"):
        sw.create_config({"x": REF["a"][-1]}, "table", [Condition.step_index()])
    with pytest.raises(ValueError, match="finite and >= 0, got -1"):
        sw.create_config({"x": REF["a"][-1]}, "table", priority=-1.0)
    with pytest.raises(ValueError, match="at least one config"):
        client.structured_writer([])
    with client.structured_writer([sw.create_config(LAST, "nowhere")]) as writer, pytest.raises(errors.TableNotFound):
        writer.append(1)


# --- signatures ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("patterns", "spec", "expected"),
    [
        (
            [{"older": REF["a"][-3:-1], "last_a": REF["a"][-1]}],
            {"a": np.zeros([3, 3], np.float32)},
            {"older": ([2, 3, 3], np.float32), "last_a": ([3, 3], np.float32)},
        ),
        (
            [{"stepped": REF["a"][-6::2], "slice": REF["a"][-4:]}, {"stepped": REF["a"][-3:], "slice": REF["a"][-2:]}],
            {"a": np.zeros([3], np.float32)},
            {"stepped": ([3, 3], np.float32), "slice": ([None, 3], np.float32)},
        ),
        ([{"x": REF["a"][-5::2]}], {"a": np.zeros([], np.int8)}, {"x": ([3], np.int8)}),
    ],
)
def test_infer_signature(patterns, spec, expected):
    signature = sw.infer_signature([sw.create_config(pattern, "table") for pattern in patterns], spec)
    assert signature == {key: replay.Spec(*value) for key, value in expected.items()}
    assert {key: value.name for key, value in signature.items()} == {key: key for key in expected}


@pytest.mark.parametrize(
    ("configs", "match"),
    [
        ([], "At least one config"),
        ([("a", {"x": REF["a"][-1]}), ("b", {"x": REF["a"][-1]})], "same table but provided configs included a, b"),
        ([("a", {"x": REF["a"][-1]}), ("a", {"y": REF["a"][-1]})], "exactly the same pattern_structure"),
        ([("a", {"x": REF["a"][-1]}), ("a", {"x": REF["b"]["c"][-1]})], r"multiple dtypes at \('x',\)"),
        (
            [("a", {"x": REF["a"][-1]}), ("a", {"x": REF["a"][-2:]})],
            r"incompatible shapes at \('x',\). Got \[\(\), \(2,\)\]",
        ),
        (
            [("a", {"x": REF["b"]["d"][0][-2:]}), ("a", {"x": REF["b"]["d"][1][-2:]})],
            r"incompatible shapes at \('x',\)",
        ),
    ],
)
def test_infer_signature_refuses(configs, match):
    with pytest.raises(ValueError, match=match):
        sw.infer_signature([sw.create_config(pattern, table) for table, pattern in configs], STEP)


# --- the first writer ------------------------------------------------------------------------------------------------


def test_the_first_writer(client):
    with client.writer(2) as writer:
        writer.append([0, 1.5])
        writer.append_sequence([np.array([1, 2]), np.array([2.5, 3.5])])
        for _ in range(4):
            writer.create_item(TABLES[0], 2, 1.0)
        with pytest.raises(ValueError, match=r"num_timesteps \(4\) is more than the 3 steps appended"):
            writer.create_item(TABLES[0], 4, 1.0)
    batch = client.sample_batch(TABLES[0], 4)
    assert batch.data[0].tolist() == [[1, 2]] * 4
    assert batch.data[1].tolist() == [[2.5, 3.5]] * 4


def test_the_first_writer_closes(client):
    writer = client.writer(1, max_in_flight_items=1)
    writer.append(1)
    writer.create_item(TABLES[0], 1, 1.0)
    writer.close(retry_on_unavailable=False)
    writer.close()
    assert client.server_info()[TABLES[0]].current_size == 1


@pytest.mark.parametrize(
    "arguments",
    [
        {"max_sequence_length": 0},
        {"chunk_length": 0},
        {"chunk_length": -1},
        {"chunk_length": 3},
        {"max_in_flight_items": -1},
    ],
)
def test_the_first_writer_checks_its_arguments(client, arguments):
    with pytest.raises(ValueError, match=next(iter(arguments))):
        client.writer(**{"max_sequence_length": 2, **arguments})


def test_configure(client):
    writer = client.trajectory_writer(1)
    writer.append({"x": 0})
    for wrong in ((0, None), (2, 0), (2, 3)):
        with pytest.raises(ValueError, match="column x"):
            writer.configure(("x",), num_keep_alive_refs=wrong[0], max_chunk_length=wrong[1])
    writer.configure(("x",), num_keep_alive_refs=2, max_chunk_length=1)
    writer.configure(("not_yet",), num_keep_alive_refs=2)
    writer.append({"x": 1})
    writer.append({"x": 2})
    writer.create_item(TABLES[0], 1.0, writer.history["x"][-2:])
    writer.flush()
    assert content(client)[0].tolist() == [[1, 2]]
