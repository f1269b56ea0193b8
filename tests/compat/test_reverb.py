"""What Reverb's own tests check of clients, servers, tables and limiters, through its names. Nothing here needs
TensorFlow."""

from __future__ import annotations

import inspect
import itertools
import pickle
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from importlib.util import find_spec
from typing import Any, NamedTuple

import numpy as np
import pytest

from topology.compat import provided

with provided():
    import reverb
    from reverb import client as client_lib
    from reverb import errors, item_selectors, pybind, rate_limiters, replay_sample, reverb_types
    from reverb import server as server_lib
    from reverb.platform import checkpointers_lib
    from reverb.platform.default import checkpointers

pytestmark = pytest.mark.usefixtures("provided")

TIMEOUT_S = 20


def make_table(name: str = "table", **options: Any) -> Any:
    defaults: dict[str, Any] = {
        "sampler": reverb.selectors.Uniform(),
        "remover": reverb.selectors.Fifo(),
        "max_size": 1000,
        "rate_limiter": reverb.rate_limiters.MinSize(1),
    }
    return reverb.Table(name, **{**defaults, **options})


# -- names ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("module", "names"),
    [
        (
            "reverb",
            "Client DeadlineExceededError ReplaySample ReverbError SampleInfo Server Table TrajectoryColumn "
            "TrajectoryWriter Writer checkpointers rate_limiters selectors structured structured_writer errors pybind "
            "item_selectors reverb_types replay_sample platform client server trajectory_writer",
        ),
        ("reverb.client", "Client Writer"),
        ("reverb.errors", "DeadlineExceededError ReverbError"),
        ("reverb.item_selectors", "Fifo Lifo MaxHeap MinHeap Prioritized Uniform"),
        ("reverb.platform.checkpointers_lib", "CheckpointerBase DefaultCheckpointer TempDirCheckpointer"),
        ("reverb.platform.default.checkpointers", "DefaultCheckpointer TempDirCheckpointer default_checkpointer"),
        (
            "reverb.pybind",
            "AutoTunedChunkerOptions Checkpointer ChunkerOptions Client ConstantChunkerOptions FifoSelector "
            "HeapSelector ItemSelector LifoSelector PrioritizedSelector RateLimiter Server StructuredWriter Table "
            "TableExtension TrajectoryWriter UniformSelector WeakCellRef Writer create_default_checkpointer "
            "selector_from_proto",
        ),
        ("reverb.cc.patterns_pb2", "Condition PatternNode StructuredWriterConfig"),
        ("reverb.rate_limiters", "MinSize Queue RateLimiter SampleToInsertRatio Stack"),
        ("reverb.replay_sample", "ReplaySample SampleInfo"),
        ("reverb.reverb_types", "Fifo Heap Lifo Prioritized SelectorType SpecNest TableInfo Uniform"),
        ("reverb.server", "Server Table TableExtensionBase"),
        (
            "reverb.structured_writer",
            "Condition Config Pattern PatternTransform ReferenceStep StructuredWriter create_config "
            "create_reference_step infer_signature pattern_from_transform unpack_pattern",
        ),
        ("reverb.timestep_dataset", "TimestepDataset"),
        ("reverb.trajectory_dataset", "TrajectoryDataset"),
        ("reverb.trajectory_writer", "TrajectoryColumn TrajectoryWriter"),
    ],
)
def test_modules_have_their_names(module: str, names: str) -> None:
    found = import_module(module)
    assert [name for name in names.split() if not hasattr(found, name)] == []


@pytest.mark.parametrize(
    ("function", "parameters"),
    [
        (reverb.Table, "name sampler remover max_size rate_limiter max_times_sampled extensions signature"),
        (reverb.Table.queue, "name max_size extensions signature"),
        (reverb.Table.stack, "name max_size extensions signature"),
        (
            reverb.Table.replace,
            "self name sampler remover max_size rate_limiter max_times_sampled extensions signature",
        ),
        (reverb.Server, "tables port checkpointer"),
        (reverb.Client, "server_address"),
        (reverb.Client.insert, "self data priorities"),
        (reverb.Client.writer, "self max_sequence_length delta_encoded chunk_length max_in_flight_items"),
        (reverb.Client.sample, "self table num_samples emit_timesteps unpack_as_table_signature"),
        (reverb.Client.mutate_priorities, "self table updates deletes"),
        (reverb.Client.server_info, "self timeout"),
        (reverb.Client.trajectory_writer, "self num_keep_alive_refs"),
        (reverb.Client.structured_writer, "self configs"),
        (reverb.TrajectoryWriter.flush, "self block_until_num_items timeout_ms"),
        (reverb.TrajectoryWriter.end_episode, "self clear_buffers timeout_ms"),
        (reverb.TrajectoryWriter.append, "self data partial_step"),
        (reverb.TrajectoryWriter.create_item, "self table priority trajectory"),
        (reverb.TrajectoryWriter.configure, "self path num_keep_alive_refs max_chunk_length"),
        (reverb.Writer.create_item, "self table num_timesteps priority"),
        (reverb.checkpointers.DefaultCheckpointer, "path group fallback_checkpoint_path"),
        (reverb.rate_limiters.RateLimiter, "samples_per_insert min_size_to_sample min_diff max_diff"),
        (reverb.rate_limiters.SampleToInsertRatio, "samples_per_insert min_size_to_sample error_buffer"),
        *(
            (
                dataset,
                "server_address table dtypes shapes max_in_flight_samples_per_worker num_workers_per_iterator "
                "max_samples_per_stream rate_limiter_timeout_ms max_samples",
            )
            for dataset in (reverb.TrajectoryDataset, reverb.TimestepDataset)
        ),
        (
            reverb.TrajectoryDataset.from_table_signature,
            "server_address table max_in_flight_samples_per_worker num_workers_per_iterator max_samples_per_stream "
            "rate_limiter_timeout_ms get_signature_timeout_secs max_samples",
        ),
    ],
)
def test_parameters_stand_where_programs_expect_them(function: Any, parameters: str) -> None:
    found = list(inspect.signature(function).parameters)
    assert found[: len(parameters.split())] == parameters.split()


def test_names_that_are_not_provided_say_what_to_use() -> None:
    with pytest.raises(AttributeError, match=r"'ReplayDataset'.*use reverb\.TimestepDataset"):
        _ = reverb.ReplayDataset
    with pytest.raises(AttributeError, match=r"docs/migration/reverb\.md"):
        _ = reverb.pybind.anything
    with pytest.raises(AttributeError, match=r"'Sampler'.*use reverb\.Client\.sample"):
        _ = reverb.pybind.Sampler
    with pytest.raises(ModuleNotFoundError, match=r"reverb\.server_executable is not among the modules"):
        import_module("reverb.server_executable")
    assert not hasattr(reverb, "__version__")


def test_aliases_are_the_same_things() -> None:
    assert reverb.selectors is item_selectors
    assert reverb.Server is server_lib.Server
    assert reverb.Client is client_lib.Client is pybind.Client
    assert reverb.checkpointers is checkpointers
    assert checkpointers.DefaultCheckpointer is checkpointers_lib.DefaultCheckpointer
    assert pybind.HeapSelector(min_heap=True) == reverb.selectors.MinHeap()
    assert isinstance(reverb.selectors.Prioritized(0.6), pybind.PrioritizedSelector)
    assert isinstance(reverb.selectors.MaxHeap(), reverb_types.SelectorType)
    assert isinstance(reverb.selectors.MinHeap(), reverb_types.Heap)
    assert not isinstance(reverb.selectors.Fifo(), pybind.HeapSelector)
    assert reverb.SampleInfo.zeros() == replay_sample.SampleInfo(0, 0.0, 0, 0.0, 0)
    assert issubclass(errors.DeadlineExceededError, errors.ReverbError)


def test_tensorflow_stays_out_of_inserts_and_samples() -> None:
    code = (
        "import topology.compat; topology.compat.install(); import sys, reverb\n"
        "with reverb.Server([reverb.Table.queue('q', 3)]) as server:\n"
        "    client = server.localhost_client()\n"
        "    client.insert([1.0], {'q': 1.0}); print(next(client.sample('q'))[0].data)\n"
        "print('tensorflow' in sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=50, check=False)
    assert done.stdout.split() == ["[array(1.)]", "False"], done.stderr


# -- client -----------------------------------------------------------------------------------------------------------


def test_info_of_samples(serve: Any) -> None:
    client = serve(make_table())
    for i in range(1, 11):
        client.insert([np.zeros((3, 3), np.float32)], {"table": 1.0})
        info = next(client.sample("table", 1))[0].info
        assert (info.table_size, info.probability, info.priority) == (i, pytest.approx(1 / i), 1.0)
        assert [type(field) for field in info] == [int, float, int, float, int]
    client.mutate_priorities("table", updates={info.key: 5.0})
    whole = {sample.info for sample in client.sample("table", 200, emit_timesteps=False)}
    assert {found.priority for found in whole if found.key == info.key} == {5.0}
    assert {found.priority for found in whole if found.key != info.key} == {1.0}


def test_priorities_decide_and_can_be_changed_and_deleted(serve: Any) -> None:
    client = serve(make_table(sampler=reverb.selectors.Prioritized(1)))
    for value, priority in ((0, 0.0), (1, 1.0), (2, 3.0)):
        client.insert([value], {"table": priority})

    def drawn(count: int = 1000) -> tuple[dict[int, float], dict[int, int]]:
        samples = [step for (step,) in client.sample("table", num_samples=count)]
        values = [int(sample.data[0]) for sample in samples]
        return {v: values.count(v) / count for v in range(3)}, {int(s.data[0]): s.info.key for s in samples}

    shares, keys = drawn()
    assert shares[0] == 0.0
    assert shares[2] == pytest.approx(0.75, abs=0.08)
    client.mutate_priorities("table", updates={keys[1]: 9.0, 12345: 1.0}, deletes=[54321])
    shares, _ = drawn()
    assert shares[1] == pytest.approx(0.75, abs=0.08)
    client.mutate_priorities("table", deletes=[keys[2]])
    assert drawn(50)[0][2] == 0.0
    assert client.server_info()["table"].current_size == 2


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda c: c.insert([1], {}), "priorities must contain at least one item"),
        (lambda c: c.writer(0), r"max_sequence_length \(0\) must be a positive integer"),
        (lambda c: c.writer(1, chunk_length=0), r"chunk_length \(0\)"),
        (lambda c: c.writer(1, chunk_length=-1), r"chunk_length \(-1\)"),
        (lambda c: c.writer(1, chunk_length=2), r"chunk_length \(2\)"),
        (lambda c: c.writer(1, max_in_flight_items=-1), r"max_in_flight_items \(-1\) must be a positive integer"),
        (lambda c: c.trajectory_writer(0), r"num_keep_alive_refs \(0\) must be a positive integer"),
        (lambda c: c.trajectory_writer(-1), r"num_keep_alive_refs \(-1\) must be a positive integer"),
        (lambda c: c.structured_writer([]), r"At least one config must be provided\."),
    ],
)
def test_arguments_of_the_client_are_checked(serve: Any, call: Any, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        call(serve(make_table()))


def test_what_sample_cannot_give_is_said_in_the_words_of_the_original(serve: Any) -> None:
    client = serve(make_table("a"), make_table("b"))
    with client.trajectory_writer(2) as writer:
        for i in range(2):
            writer.append({"o": i, "r": i})
        writer.create_item("a", 1.0, {"o": writer.history["o"][:], "r": writer.history["r"][-1:]})
    with pytest.raises(
        ValueError, match=r"^Can't split non timestep trajectory into timesteps\. .* emit_timesteps=False"
    ):
        next(client.sample("a"))
    with pytest.raises(ValueError, match=r'^Could not find table "c"\. The following tables exists: a, b\.$'):
        next(client.sample("c", unpack_as_table_signature=True))


@pytest.mark.parametrize(
    "call",
    [
        lambda c: next(c.sample("nowhere")),
        lambda c: c.reset("nowhere"),
        lambda c: c.mutate_priorities("nowhere", {1: 1.0}),
        lambda c: c.insert([1], {"nowhere": 1.0}),
    ],
)
def test_an_unknown_table_is_a_runtime_error_that_names_it(serve: Any, call: Any) -> None:
    with pytest.raises(RuntimeError, match="nowhere") as caught:
        call(serve(make_table()))
    assert isinstance(caught.value, errors.ReverbError)
    assert "Traceback" not in str(caught.value)


@pytest.mark.parametrize("most", [None, 1, 2])
def test_the_first_writer(serve: Any, most: int | None) -> None:
    client = serve(make_table(max_size=100))
    with client.writer(2, max_in_flight_items=most) as writer:
        writer.append([0])
        writer.create_item("table", 1, 1.0)
        writer.append([1])
        writer.append_sequence([np.array([2, 3])])
        writer.create_item("table", 2, 1.0)
        writer.create_item("table", num_timesteps=1, priority=1.0)
    assert client.server_info()["table"].current_size == 3
    found = {tuple(int(step.data[0]) for step in item) for item in client.sample("table", 100)}
    assert found == {(0,), (2, 3), (3,)}
    writer = client.writer(1)
    writer.append([4])
    writer.create_item("table", 1, 1.0)
    writer.close(retry_on_unavailable=False)
    assert client.server_info()["table"].current_size == 4
    whole = {len(sample.data[0]) for sample in client.sample("table", 100, emit_timesteps=False)}
    assert whole == {1, 2}
    writer.close()
    with pytest.raises(ValueError, match="Cannot reuse already closed Writer"), writer:
        pass
    with client.writer(1) as writer:
        writer.append([5])
    writer.close()
    with pytest.raises(RuntimeError, match="the writer is closed"):
        writer.append([6])


def test_a_table_without_signature_takes_anything_and_a_queue_keeps_its_order(serve: Any) -> None:
    client = serve(reverb.Table.queue("queue", 10))
    values = [np.zeros((3, 3), np.float32), 1, np.ones((2, 2, 2), np.uint8), b"text", np.zeros((0, 4)), True]
    for value in values:
        client.insert([value], {"queue": 1.0})
    client.insert({"x": 1.5, "y": [2]}, {"queue": 1.0})
    *found, last = [steps[0].data for steps in client.sample("queue", len(values) + 1)]
    assert [leaf.shape for (leaf,) in found] == [np.shape(value) for value in values]
    assert [leaf.tolist() for (leaf,) in found] == [v.tolist() if isinstance(v, np.ndarray) else v for v in values]
    assert [leaf.item() for leaf in last] == [1.5, 2]


def test_trajectories_come_as_the_table_s_signature_says(serve: Any) -> None:
    from topology.nodes.replay import Spec

    signature = {"a": {"b": Spec((3,), np.int64), "c": Spec((), np.float32)}}
    client = serve(make_table("signed", signature=signature), make_table("free"))
    with client.trajectory_writer(3) as writer:
        for i in range(3):
            writer.append({"b": i, "c": np.float32(i)})
        data = {"a": {"b": writer.history["b"][:], "c": writer.history["c"][-1]}}
        writer.create_item("signed", 1.0, data)
        writer.create_item("free", 1.0, data)
    sample = next(client.sample("signed", emit_timesteps=False, unpack_as_table_signature=True))
    assert isinstance(sample, reverb.ReplaySample)
    assert sample.data["a"]["b"].tolist() == [0, 1, 2]
    assert sample.data["a"]["c"] == 2.0
    for table, unpack in (("free", True), ("free", False), ("signed", False)):
        flat = next(client.sample(table, emit_timesteps=False, unpack_as_table_signature=unpack)).data
        assert [leaf.tolist() for leaf in flat] == [[0, 1, 2], 2.0]
    client.insert({"x": 7}, {"free": 1.0})
    lengths = {len(sample.data[0]) for sample in client.sample("free", 50, emit_timesteps=False)}
    assert lengths == {1, 3}


class Transition(NamedTuple):
    observation: Any
    action: Any


def test_structures_of_the_program_come_back_as_they_are(serve: Any) -> None:
    from topology.nodes.replay import Spec

    signature = Transition({"pixels": Spec((2, 4), np.uint8)}, (Spec((), np.int32, "action"),))
    client = serve(make_table(signature=signature))
    assert signature == client.server_info()["table"].signature  # in this order also where TensorFlow is loaded
    with client.trajectory_writer(2) as writer:
        for i in range(2):
            writer.append(Transition({"pixels": np.full(4, i, np.uint8)}, (np.int32(i),)))
        history = writer.history
        assert isinstance(history, Transition)
        item = Transition({"pixels": history.observation["pixels"][:]}, (history.action[0][-1],))
        writer.create_item("table", 1.0, item)
    sample = next(client.sample("table", emit_timesteps=False, unpack_as_table_signature=True))
    assert isinstance(sample.data, Transition)
    assert (sample.data.observation["pixels"].tolist(), sample.data.action) == ([[0] * 4, [1] * 4], (1,))
    dataset = reverb.TrajectoryDataset.from_table_signature(client.server_address, "table", 1)
    batch = next(iter(dataset.batch(3).as_numpy_iterator()))
    assert isinstance(batch.data, Transition)
    assert batch.data.observation["pixels"].shape == (3, 2, 4)


def test_server_info(serve: Any) -> None:
    prioritized = reverb.selectors.Prioritized(0.9)
    client = serve(
        make_table("a", sampler=prioritized, max_size=5), make_table("b", remover=reverb.selectors.MinHeap())
    )
    for _ in range(3):
        client.insert([1], {"a": 1.0})
    list(client.sample("a", 10))
    info = client.server_info(timeout=10)
    assert sorted(info) == ["a", "b"]
    a, b = info["a"], info["b"]
    assert (a.name, a.current_size, a.max_size, a.max_times_sampled, a.signature) == ("a", 3, 5, 0, None)
    assert 1 <= a.num_unique_samples <= 3
    assert a.sampler_options.prioritized.priority_exponent == 0.9
    assert a.sampler_options.HasField("prioritized")
    assert a.remover_options.HasField("fifo")
    assert b.remover_options.heap.min_heap
    assert (a.rate_limiter_info.insert_stats.completed, a.rate_limiter_info.sample_stats.completed) == (3, 10)
    assert (a.num_episodes, a.num_deleted_episodes) == (3, 0)
    assert isinstance(a, reverb_types.TableInfo)
    times = a.table_worker_time
    assert times.sleeping_ms >= 0
    assert times.running_ms == times.sampling_ms + times.inserting_ms
    assert [a.sampler_options.WhichOneof("distribution"), b.remover_options.WhichOneof("distribution")] == [
        "prioritized",
        "heap",
    ]
    assert client.server_info(timeout=0)["b"].current_size == 0  # 0 is no limit


def test_a_reset_table_is_empty_and_counts_anew(serve: Any) -> None:
    client = serve(make_table(rate_limiter=reverb.rate_limiters.Queue(3)))

    def fill() -> set[int]:
        for i in range(3):
            client.insert([i], {"table": 1.0})
        return {step[0].info.key for step in client.sample("table", 3)}

    before = fill()
    client.reset("table")
    info = client.server_info()["table"]
    assert (info.current_size, info.rate_limiter_info.insert_stats.completed) == (0, 0)
    assert not fill() & before


def test_a_server_that_is_not_there() -> None:
    with (
        reverb.Client("localhost:1") as client,
        pytest.raises(
            errors.DeadlineExceededError, match=r"ServerInfo call did not complete within provided timeout of 0\.1s"
        ),
    ):
        client.server_info(timeout=0.1)


def test_clients_can_be_pickled(serve: Any) -> None:
    client = serve(make_table())
    loaded = pickle.loads(pickle.dumps(client))
    assert type(loaded) is reverb.Client
    assert loaded._server_address == client._server_address == client.server_address
    loaded.insert([np.zeros((3, 3))], {"table": 1.0})
    loaded.close()
    assert client.server_info()["table"].current_size == 1


@pytest.mark.parametrize(("how", "per_thread", "left"), [("flush", 10, 640), ("scope", 20, 1000)])
def test_many_threads_write(serve: Any, how: str, per_thread: int, left: int) -> None:
    client = serve(make_table())

    def write(_: int) -> None:
        with client.writer(1) if how == "flush" else client.trajectory_writer(1) as writer:
            for i in range(per_thread):
                writer.append([i])
                if how == "flush":
                    writer.create_item("table", 1, 1.0)
                else:
                    writer.create_item("table", 1.0, [column[-1:] for column in writer.history])
            writer.flush()

    with ThreadPoolExecutor(16) as pool:
        list(pool.map(write, range(64)))
    info = client.server_info()["table"]
    assert info.current_size == left
    assert info.rate_limiter_info.insert_stats.completed == 64 * per_thread


NUMBERS = [
    "float16",
    "float32",
    "float64",
    "int8",
    "int16",
    "int32",
    "int64",
    "uint8",
    "uint16",
    "uint32",
    "uint64",
    "complex64",
    "complex128",
    "bool",
]


@pytest.mark.parametrize(
    "value", [1, 2.5, *(np.ones((2, 2), kind) for kind in NUMBERS), np.array([b"a\x00", b"long er"])]
)
def test_values_come_back_as_they_were(serve: Any, value: Any) -> None:
    client = serve(make_table())
    client.insert([value], {"table": 1.0})
    found = next(client.sample("table"))[0].data[0]
    assert isinstance(found, np.ndarray)
    if np.asarray(value).dtype.kind == "S":
        assert found.tolist() == value.tolist()
        return
    assert found.dtype == np.asarray(value).dtype
    np.testing.assert_array_equal(found, value)


def test_text_comes_back_as_bytes(serve: Any) -> None:
    client = serve(reverb.Table.queue("table", 100))
    for i in range(100):
        client.insert(["x" * i], {"table": 1.0})
    found = [item[0].data[0] for item in client.sample("table", 100)]
    assert [cell.tolist() for cell in found] == [b"x" * i for i in range(100)]


# -- servers and tables -----------------------------------------------------------------------------------------------


def test_a_server_without_tables_or_with_two_of_a_name() -> None:
    for tables in ([], None):
        with pytest.raises(ValueError, match="At least one table must be provided"):
            reverb.Server(tables)
    with pytest.raises(ValueError, match="Multiple items in tables have the same name: a"):
        reverb.Server([make_table("a"), make_table("a"), make_table("b")])


def test_a_server_serves_at_once_and_ends_with_its_last_reference() -> None:
    server = reverb.Server(tables=[make_table()], port=None)
    local = server.localhost_client()
    local.insert([1], {"table": 1.0})
    with reverb.Client(f"localhost:{server.port}") as client:
        assert client.server_info(timeout=10)["table"].current_size == 1
    waiting = threading.Thread(target=server.wait)
    waiting.start()
    server.stop()
    waiting.join(TIMEOUT_S)
    assert not waiting.is_alive()
    del server, local, waiting
    forgotten = reverb.Server([make_table()])
    address = f"localhost:{forgotten.port}"
    del forgotten  # the guard of this file's tests finds what it leaves
    with reverb.Client(address) as client, pytest.raises(errors.DeadlineExceededError):
        client.server_info(timeout=0.1)


FORK = """
import os, topology.compat; topology.compat.install(); import numpy as np, reverb
server = reverb.Server([reverb.Table.queue("queue", 10)])
clients = [server.localhost_client(), reverb.Client(f"localhost:{server.port}")]
for client in clients:
    client.insert([1], {"queue": 1.0})
child = os.fork()
for client in clients:
    client.insert([2], {"queue": 1.0})
dataset = reverb.TrajectoryDataset(clients[1].server_address, "queue", [np.int64], [(1,)], 1, -1, -1, -1, 1)
print([sample.data[0].tolist() for sample in dataset.as_numpy_iterator()], flush=True)
if not child:
    del server  # a copy: the server goes on
    os._exit(0)
print(os.waitpid(child, 0)[1], clients[1].server_info()["queue"].current_size)
"""


@pytest.mark.skipif(find_spec("tensorflow") is not None, reason="TensorFlow, and so its dataset, survives no fork")
def test_a_fork_reaches_the_server_of_its_parent() -> None:
    command = [sys.executable, "-W", "ignore", "-c", FORK]
    done = subprocess.run(command, capture_output=True, text=True, timeout=50, check=False)
    *drawn, last = done.stdout.splitlines()
    assert (drawn, last, done.stderr, done.returncode) == (["[[1]]", "[[1]]"], "0 4", "", 0)


ENDS = {
    "a server, clients and writers that nobody ended": "",
    "all in a circle": "box = [server, client, writer]; box.append(box); del server, client, writer",
    "a thread that waits": "import threading; threading.Thread(target=next, args=(samples,), daemon=True).start()",
    "a server that was stopped": "server.stop()",
    "an error": "raise SystemExit(0)",
}


@pytest.mark.parametrize("end", ENDS)
def test_a_script_ends_without_a_word(end: str) -> None:
    code = (
        "import topology.compat; topology.compat.install(); import reverb\n"
        "server = reverb.Server([reverb.Table.queue('full', 1), reverb.Table.queue('empty', 1)])\n"
        "client = reverb.Client(f'localhost:{server.port}'); local = server.localhost_client()\n"
        "writer = client.trajectory_writer(1); samples = local.sample('empty')\n"
        "for i in range(2): writer.append([i]); writer.create_item('full', 1.0, writer.history[0][-1:])\n"
        f"{ENDS[end]}\n"
    )
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, timeout=50, check=False)
    assert (done.stdout, done.stderr, done.returncode) == ("", "", 0)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"name": ""}, "name must be nonempty"),
        ({"max_size": 0}, r"max_size \(0\) must be a positive integer"),
        ({"max_size": "5"}, "max_size must be an integer, got '5'"),
        ({"signature": [1]}, "Unsupported signature spec: 1"),
        ({"extensions": [object()]}, "extensions are C"),
    ],
)
def test_arguments_of_tables_are_checked(options: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        make_table(**options)


def test_can_sample_and_can_insert(serve: Any) -> None:
    limiter = reverb.rate_limiters.SampleToInsertRatio(
        samples_per_insert=1.0, min_size_to_sample=2, error_buffer=(-100, 100)
    )
    table = make_table(max_times_sampled=1, rate_limiter=limiter)
    client = serve(table)
    assert not table.can_sample(1)
    assert table.can_insert(1)
    for _ in range(2):
        client.insert(1, {"table": 1.0})
    assert table.can_sample(2)
    assert table.can_sample(4)  # how often an item may be sampled is not considered
    assert not table.can_insert(10000)


SELECTORS = {
    "fifo": reverb.selectors.Fifo(),
    "lifo": reverb.selectors.Lifo(),
    "heap": reverb.selectors.MaxHeap(),
    "uniform": reverb.selectors.Uniform(),
    "prioritized": reverb.selectors.Prioritized(1.0),
}


@pytest.mark.parametrize(("sampler", "remover"), list(itertools.product(SELECTORS, SELECTORS)))
def test_info_of_tables(sampler: str, remover: str) -> None:
    for limiter in (
        rate_limiters.MinSize(10),
        rate_limiters.Queue(10),
        rate_limiters.SampleToInsertRatio(1.0, 10, 1.0),
        rate_limiters.Stack(10),
    ):
        info = make_table("t", sampler=SELECTORS[sampler], remover=SELECTORS[remover], rate_limiter=limiter).info
        assert (info.name, info.max_size, info.current_size, info.num_episodes) == ("t", 1000, 0, 0)
        assert (info.num_deleted_episodes, info.signature) == (0, None)
        assert info.sampler_options.HasField(sampler)
        assert info.remover_options.HasField(remover)


@pytest.mark.parametrize(
    "selector", [*SELECTORS.values(), reverb.selectors.MinHeap(), reverb.selectors.Prioritized(0.3)]
)
def test_a_selector_can_be_rebuilt_from_the_info_of_a_table(selector: Any) -> None:
    options = make_table(sampler=selector).info.sampler_options
    assert pybind.selector_from_proto(options.SerializeToString()) == selector


@pytest.mark.parametrize("wrong", [b"", b"{}", b"[1]", b'{"heap": 1, "prioritized": null}'])
def test_bytes_that_are_no_options_are_refused(wrong: bytes) -> None:
    with pytest.raises(ValueError, match="not the options of a selector"):
        pybind.selector_from_proto(wrong)
    with pytest.raises(ValueError, match="'distribution', not 'other'"):
        make_table().info.sampler_options.WhichOneof("other")


def test_replace_copies_a_table_with_a_change() -> None:
    table = make_table(sampler=reverb.selectors.Prioritized(0.5), max_times_sampled=3, max_size=77)
    new = table.replace(rate_limiter=reverb.rate_limiters.SampleToInsertRatio(2.0, 10, 20.0))
    assert type(new) is reverb.Table
    info = new.info
    assert (info.name, info.max_size, info.max_times_sampled) == ("table", 77, 3)
    assert info.sampler_options.prioritized.priority_exponent == 0.5
    limits = info.rate_limiter_info
    assert (limits.min_size_to_sample, limits.min_diff, limits.max_diff, limits.samples_per_insert) == (
        10,
        0.0,
        40.0,
        2.0,
    )
    rebuilt = reverb.rate_limiters.RateLimiter(
        limits.samples_per_insert, limits.min_size_to_sample, limits.min_diff, limits.max_diff
    )
    assert table.replace(name="other", rate_limiter=rebuilt).info.rate_limiter_info == limits


def test_queues_and_stacks_give_each_item_once(serve: Any) -> None:
    client = serve(reverb.Table.queue("queue", 10), reverb.Table.stack(name="stack", max_size=10, signature=None))
    for i in range(3):
        client.insert([i], {"queue": 1.0, "stack": 1.0})
    assert [int(item[0].data[0]) for item in client.sample("queue", 3)] == [0, 1, 2]
    assert [int(item[0].data[0]) for item in client.sample("stack", 3)] == [2, 1, 0]
    assert all(info.current_size == 0 for info in client.server_info().values())


def test_checkpoints_are_restored_by_name_of_directory(tmp_path: Any) -> None:
    def start(**options: Any) -> Any:
        return reverb.Server(
            [make_table()], checkpointer=reverb.checkpointers.DefaultCheckpointer(str(tmp_path), **options)
        )

    with start(group="g") as server, server.localhost_client() as client:
        client.insert([1], {"table": 5.0})
        assert client.checkpoint().startswith(str(tmp_path))
    with start(group="g") as server, server.localhost_client() as client:
        assert next(client.sample("table"))[0].info.priority == 5.0
    with start(group="h", fallback_checkpoint_path=str(tmp_path / "g")) as server:
        assert server.localhost_client().server_info()["table"].current_size == 1
    with reverb.Server([make_table()]) as server:  # a temporary directory is the default
        assert server.localhost_client().checkpoint()
    with reverb.Server([make_table()], checkpointer=pybind.create_default_checkpointer(str(tmp_path), "g")) as server:
        assert server.localhost_client().server_info()["table"].current_size == 1
    for checkpointer in (checkpointers.default_checkpointer(), checkpointers_lib.TempDirCheckpointer()):
        assert isinstance(checkpointer, checkpointers_lib.CheckpointerBase)


def test_what_a_server_is_started_with_wins_over_its_checkpoint(tmp_path: Any) -> None:
    checkpointer = reverb.checkpointers.DefaultCheckpointer(str(tmp_path))
    with reverb.Server([make_table(max_times_sampled=1)], checkpointer=checkpointer) as server:
        client = server.localhost_client()
        for i in range(5):
            client.insert([i], {"table": 1.0})
        client.checkpoint()
    fewer = make_table(max_times_sampled=0, max_size=3, rate_limiter=reverb.rate_limiters.MinSize(2))
    with reverb.Server([fewer], checkpointer=checkpointer) as server:
        info = server.localhost_client().server_info()["table"]
        assert (info.max_times_sampled, info.max_size, info.current_size) == (0, 3, 3)
        assert info.rate_limiter_info.min_size_to_sample == 2


# -- rate limiters ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "is_valid"),
    [
        ((0.5, 10, 0.5), False),
        ((0.5, 10, 1.0), True),
        ((1.5, 10, 1.4), False),
        ((2.0, 10, 1.0), False),
        ((2.0, 10, 2.0), True),
        ((0.5, 10, (4.1, 6.0)), False),
        ((0.5, 10, (4.0, 6.0)), True),
        ((1.5, 10, (14.0, 16.0)), False),
        ((2.0, 1, (1.0, 3.0)), False),
        ((1.0, 1, (2.0, 10.0)), False),
        ((1.0, 0, (-5.0, 10.0)), False),
        ((1.0, 5, (-100.0, -50.0)), True),
        ((0.0, 10, 5.0), False),
        ((-1.0, 10, 5.0), False),
    ],
)
def test_ratios_are_checked(arguments: tuple[Any, ...], is_valid: bool) -> None:
    if is_valid:
        reverb.rate_limiters.SampleToInsertRatio(*arguments)
        return
    with pytest.raises(ValueError, match=r"error_buffer|samples_per_insert|min_size_to_sample"):
        reverb.rate_limiters.SampleToInsertRatio(*arguments)


@pytest.mark.parametrize("size", [0, -1])
def test_the_least_size_is_checked(size: int) -> None:
    with pytest.raises(ValueError, match=rf"min_size_to_sample \({size}\) must be a positive integer"):
        reverb.rate_limiters.MinSize(size)


@pytest.mark.parametrize(("count", "drawn"), [(1, [1]), (2, [2, 2]), (9, [2, 3, 4])])
def test_a_client_asks_for_the_next_sample_while_the_program_works_on_one(count: int, drawn: list[int]) -> None:
    """As there, and for no more than the program wants in all."""
    with reverb.Server([make_table()]) as server, server.localhost_client() as client:
        client.insert([1.0], {"table": 1.0})
        found = [
            client.server_info()["table"].rate_limiter_info.sample_stats.completed
            for _ in zip(drawn, client.sample("table", count), strict=False)
        ]
    assert found == drawn
