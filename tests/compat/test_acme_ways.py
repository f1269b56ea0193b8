"""What today's Acme does with launchpad, courier and reverb: a small experiment built and ended in its way."""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import datetime
import itertools
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import pytest

from topology.compat import provided
from topology.testing import no_leaks

with provided():
    import courier
    import launchpad as lp
    import reverb
    from launchpad.nodes.courier import courier_utils
    from reverb import rate_limiters, structured_writer

pytestmark = pytest.mark.usefixtures("provided")

TIMEOUT_S = 30
STEPS = 40


@contextlib.contextmanager
def ended_by_a_stop_handler(callback: Callable[[], None] | None = None) -> Iterator[None]:
    """Calls back at the stop, and raises `SystemExit` in the thread of the block."""
    ident = threading.get_ident()

    def handler() -> None:
        if callback is not None:
            callback()
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_long(ident), ctypes.py_object(SystemExit))

    lp.register_stop_handler(handler)
    yield  # without `finally`: the handler stays when the block raises
    lp.unregister_stop_handler(handler)


class Counter:
    def __init__(self) -> None:
        self._counts: dict[str, int] = {}
        self._lock = threading.Lock()

    def increment(self, **counts: int) -> dict[str, int]:
        with self._lock:
            for name, count in counts.items():
                self._counts[name] = self._counts.get(name, 0) + count
            return dict(self._counts)

    def get_counts(self) -> dict[str, int]:
        return self.increment()


class Saved:
    """Runs beside what it wraps, and shows the methods of that as its own."""

    def __init__(self, wrapped: Any) -> None:
        self._wrapped = wrapped

    def __dir__(self) -> Any:
        return dir(self._wrapped)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._wrapped, name)

    def run(self) -> None:
        if hasattr(self._wrapped, "run"):
            thread = threading.Thread(target=self._save_now_and_then)
            thread.start()
            self._wrapped.run()
        else:
            self._save_now_and_then()

    def _save_now_and_then(self) -> None:
        # A thread of its own would end with a `SystemExit` in silence, but pytest keeps its last error.
        with contextlib.suppress(SystemExit), ended_by_a_stop_handler(lambda: None):
            while True:
                time.sleep(0.05)


class StepsLimiter:
    """Stops the program, and then goes on looking."""

    def __init__(self, counter: Any, most: int) -> None:
        self._counter, self._most = counter, most

    def run(self) -> None:
        with ended_by_a_stop_handler():
            while True:
                if self._counter.get_counts().get("actor_steps", 0) > self._most:
                    lp.stop()
                time.sleep(0.02)


class Reference(NamedTuple):
    """Stands for variables at the inference server."""

    variable_name: str


@dataclasses.dataclass(frozen=True)
class EpsilonState:
    """State of an actor of the one kind."""

    key: Any
    epsilon: float


class CoreState(NamedTuple):
    """State of an actor of the other kind."""

    key: Any
    core: dict[str, Any]
    log_prob: Any = ()


class InferenceServer:
    """Serves a handler that is the value of a property, made in the constructor."""

    def __init__(self, variable_source: Any, batch_size: int) -> None:
        self._source = variable_source
        self._mutex = threading.Lock()
        timeout = datetime.timedelta(days=30)
        batched = lp.batched_handler(batch_size=batch_size, timeout=timeout, pad_batch=True, max_parallelism=2)
        self._handler = batched(self._select)

    @property
    def handler(self) -> Any:
        return self._handler

    def _select(self, params: Any, observation: Any, state: Any) -> Any:
        with self._mutex:
            (weights,) = self._source.get_variables([params.variable_name[0]])
        assert observation.shape == (2, 3)
        assert state.key.shape == (2, 2)
        if isinstance(state, EpsilonState):
            assert isinstance(state.epsilon, np.ndarray), "numbers are stacked, as `vmap` needs them"
            assert state.epsilon.dtype == np.float64
            new: Any = EpsilonState(state.key + 1, state.epsilon)
        else:
            assert state.core["hidden"].shape == (2, 4)
            assert state.log_prob == ()
            new = CoreState(state.key + 1, {"hidden": state.core["hidden"] + 1})
        return observation.sum(axis=1) + weights["w"], new


def build_tables() -> list[Any]:
    limiter = rate_limiters.SampleToInsertRatio(samples_per_insert=1.0, min_size_to_sample=2, error_buffer=4.0)
    signature = {"observation": np.zeros((2, 3), np.float32), "action": np.zeros(2, np.float32)}
    replay = reverb.Table(
        name="priority_table",
        sampler=reverb.selectors.Prioritized(0.6),
        remover=reverb.selectors.Fifo(),
        max_size=100,
        rate_limiter=limiter,
        extensions=[],
        signature=signature,
    )
    return [replay, reverb.Table.queue(name="queue_table", max_size=50, extensions=[], signature=signature)]


class Learner:
    def __init__(self, replay: Any, counter: Any = None, primary: Any = None) -> None:
        self._replay, self._counter = replay, counter
        self.restored = None if primary is None else primary.save()

    def get_variables(self, names: list[str]) -> list[Any]:
        assert names == ["policy"]
        return [{"w": np.float32(0.5)}]

    def save(self) -> dict[str, int]:
        return {"steps": 3}

    def run(self) -> None:
        for sample in self._replay.sample("priority_table", num_samples=10**6, emit_timesteps=False):
            assert [column.shape for column in sample.data] == [(2,), (2, 3)]
            self._replay.mutate_priorities("priority_table", updates={sample.info.key: 2.0})
            if self._counter is not None:
                self._counter.increment(learner_steps=1)


class Actor:
    """An environment loop: acts, and adds trajectories of two steps."""

    def __init__(
        self, seed: int, replay: Any, variable_source: Any, counter: Any, actor_id: int, inference: Any
    ) -> None:
        del seed
        self._source, self._counter, self._inference, self._id = variable_source, counter, inference, actor_id
        self._replay = replay

    def run(self) -> None:
        key = np.array([0, 1], np.uint32)
        state: Any = EpsilonState(key, 0.1) if self._id % 2 else CoreState(key, {"hidden": np.zeros(4)})
        if self._inference is None:
            policy: Any = self._act_alone
        else:
            policy = self._inference.handler if self._id % 2 == 0 else self._inference.other
        writer = self._replay.trajectory_writer(num_keep_alive_refs=2, get_signature_timeout_ms=300_000)
        for step in itertools.count():
            observation = np.full(3, step % 7, np.float32)
            action, state = policy(Reference("policy"), observation, state)
            assert action == 3 * (step % 7) + 0.5
            writer.append({"observation": observation}, partial_step=True)
            writer.append({"action": np.float32(action)})
            if step % 2:
                trajectory = {name: column[-2:] for name, column in writer.history.items()}
                writer.create_item(table="priority_table", priority=1.0, trajectory=trajectory)
                writer.flush(2)
            if step % 8 == 7:
                writer.end_episode(clear_buffers=True, timeout_ms=None)
            self._counter.increment(actor_steps=1)

    def _act_alone(self, _: Any, observation: Any, state: Any) -> Any:
        (weights,) = self._source.get_variables(["policy"])
        return observation.sum() + weights["w"], state


class TwoInferenceServers(InferenceServer):
    """One handler for each kind of state: a batch holds one kind."""

    def __init__(self, variable_source: Any, batch_size: int) -> None:
        super().__init__(variable_source, batch_size)
        self._other = InferenceServer(variable_source, batch_size)

    @property
    def other(self) -> Any:
        return self._other.handler

    @property
    def not_there_yet(self) -> Any:
        raise RuntimeError("whoever evaluates it too early is told so")


def build_experiment(*, inference: bool, actors_per_node: int, processes: bool, colocate: bool) -> Any:
    program = lp.Program(name="agent")
    replay_node = lp.ReverbNode(build_tables, checkpoint_time_delta_minutes=None)
    replay = replay_node.create_handle()
    counter = program.add_node(lp.CourierNode(lambda: Saved(Counter())), label="counter")
    program.add_node(lp.CourierNode(StepsLimiter, counter, STEPS), label="counter")
    learner_node = lp.CourierNode(lambda *args: Saved(Learner(*args)), replay, counter)
    learner = learner_node.create_handle()
    sources = [learner]
    if colocate:
        program.add_node(lp.MultiThreadingColocation([learner_node, replay_node]), label="learner")
    else:
        program.add_node(replay_node, label="replay")
        with program.group("learner"):
            program.add_node(learner_node)
            sources.append(program.add_node(lp.CourierNode(Learner, replay, primary=learner)))
    servers: list[Any] = [None]
    if inference:
        with program.group("inference_server"):
            kwargs = {"thread_pool_size": 2}
            servers = [program.add_node(lp.CourierNode(TwoInferenceServers, learner, 2, courier_kwargs=kwargs))]
    with program.group("actor"):
        parts = zip(range(4), itertools.cycle(sources), itertools.cycle(servers), strict=False)
        actors = [lp.CourierNode(Actor, 7, replay, source, counter, i, server) for i, source, server in parts]
        for first in range(0, 4, actors_per_node):
            some = actors[first : first + actors_per_node]
            together = lp.MultiProcessingColocation if processes else lp.MultiThreadingColocation
            program.add_node(some[0] if len(some) == 1 else together(some))
    return program


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("test_mt", {"inference": True, "actors_per_node": 2, "processes": False, "colocate": True}),
        ("test_mp", {"inference": True, "actors_per_node": 2, "processes": False, "colocate": False}),
        ("test_mp", {"inference": False, "actors_per_node": 3, "processes": True, "colocate": True}),
        ("test_mt", {"inference": False, "actors_per_node": 1, "processes": False, "colocate": False}),
    ],
)
def test_an_experiment_ends_at_its_limit(kind: str, options: dict[str, Any]) -> None:
    """Actors that wait for a batch, for replay or in a sleep end with it, and with nothing but 0."""
    program = build_experiment(**options)
    with no_leaks():
        run = lp.launch(program, kind, xm_resources=None, terminal="current_terminal")
        assert run.wait(timeout=TIMEOUT_S)
        assert set(run.exit_codes.values()) == {0}


# --- values ---------------------------------------------------------------------------------------------------------


class Served:
    """Gives arrays of JAX, and says what it is given."""

    def arrays(self) -> Any:
        import jax.numpy as jnp

        return {"w": jnp.ones((3, 4)), "scalar": jnp.float32(2), "half": jnp.ones(2, jnp.bfloat16)}, Reference("x")

    def kind_of(self, value: Any) -> str:
        return type(value).__name__


def test_arrays_of_jax_arrive_as_numpys() -> None:
    """So that they are on no device of the receiver, and can be written to."""
    jnp = pytest.importorskip("jax.numpy")
    with courier_utils.make_courier_server(Served()) as server, courier.Client(server.address) as client:
        variables, _ = client.arrays()
        assert type(variables["w"]) is np.ndarray
        variables["w"][0] = 5
        assert isinstance(variables["scalar"], np.float32)
        assert variables["half"].dtype == jnp.bfloat16
        assert client.kind_of(jnp.zeros(2)) == "ndarray"
        assert client.kind_of([jnp.zeros(2), lambda: None]) == "list", "what only cloudpickle takes, too"
        assert client.kind_of(jnp.int32(1)) == "int32"


# --- replay ---------------------------------------------------------------------------------------------------------


def test_a_local_experiment_rebuilds_its_tables() -> None:
    """Inserts are not to block the one thread; `can_sample` says when to learn."""
    table = build_tables()[0]
    info = table.info.rate_limiter_info
    limiter = reverb.rate_limiters.RateLimiter(
        samples_per_insert=info.samples_per_insert,
        min_size_to_sample=info.min_size_to_sample,
        min_diff=info.min_diff,
        max_diff=sys.float_info.max,
    )
    table = table.replace(rate_limiter=limiter)
    assert max(1, int((info.max_diff - info.min_diff) / 2)) == 4
    server = reverb.Server([table], port=None)
    client = reverb.Client(f"localhost:{server.port}")
    writer = client.trajectory_writer(num_keep_alive_refs=2)
    for _ in range(20):
        writer.append({"observation": np.zeros(3, np.float32), "action": np.float32(0)})
        if writer.episode_steps > 1:
            writer.create_item("priority_table", 1.0, {name: column[-2:] for name, column in writer.history.items()})
    writer.flush(0, timeout_ms=10_000)
    assert table.can_sample(4)
    samples = list(client.sample("priority_table", num_samples=4, emit_timesteps=False))
    client.mutate_priorities(table="priority_table", updates={sample.info.key: 0.5 for sample in samples})
    assert client.server_info()["priority_table"].current_size == 19
    assert client.server_address == f"localhost:{server.port}"
    writer.close()
    server.stop()


class Step(NamedTuple):
    observation: Any
    action: Any


def test_a_structured_adder() -> None:
    """Sequences of two, and what is left at the end of an episode."""
    spec = Step(np.zeros(3, np.float32), np.zeros((), np.int32))
    pattern = structured_writer.pattern_from_transform(spec, lambda step: Step(step.observation[-2:], step.action[-2:]))
    last = structured_writer.pattern_from_transform(spec, lambda step: Step(step.observation[-1:], step.action[-1:]))
    condition = structured_writer.Condition
    configs = [
        structured_writer.create_config(
            pattern=pattern,
            table="table",
            conditions=[condition.step_index() >= 1, condition.step_index() % 2 == 1],
        ),
        structured_writer.create_config(
            pattern=last,
            table="table",
            conditions=[condition.is_end_episode(), condition.step_index() % 2 == 0],
        ),
    ]
    signature = structured_writer.infer_signature(configs, spec)
    assert isinstance(signature, Step)
    server = reverb.Server([reverb.Table.queue("table", max_size=10)], port=None)
    with reverb.Client(f"localhost:{server.port}") as client:
        writer = client.structured_writer(configs)
        for i in range(3):
            assert not writer.step_is_open
            writer.append(Step(np.full(3, i, np.float32), None), partial_step=True)
            assert writer.step_is_open
            writer.append(Step(None, np.int32(i)))
            writer.flush(2)
        writer.end_episode(clear_buffers=True, timeout_ms=TIMEOUT_S * 1000)
        samples = list(client.sample("table", num_samples=2, emit_timesteps=False))
        del writer  # as Acme lets go of it
    assert [sample.data[1].tolist() for sample in samples] == [[0, 1], [2]]
    server.stop()
