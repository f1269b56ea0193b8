"""Settings that every agent has, and how settings are checked."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from topology.agents.core.setting_types import type_faults, with_defaults
from topology.errors import ProgramError

__all__ = ["MOST_ITEMS", "MOST_NODES", "MOST_SECONDS", "MOST_STEPS", "AgentConfig", "CheckedConfig", "ReplayConfig"]

MOST_NODES = 100_000
"""Of one group: no launcher starts as many, and a graph of many more would fill the memory before one could say so."""
MOST_ITEMS = 2**31 - 1
"""Of a table, and of one call of a learner; and updates that a learner can count."""
MOST_STEPS = 10**18
"""Of a run: whoever wants more wants one without end."""
MOST_SECONDS = 10**9
"""Thirty years: no clock of the system waits much longer."""


class CheckedConfig:
    """Settings that check themselves: a frozen dataclass that says in `faults` what is wrong with it.

    The types of its values are looked at before; see `type_faults`. `faults` sees defaults in place of the wrong ones.

    Raises:
        ProgramError: settings that cannot work; the text lists all of them.
    """

    def __post_init__(self) -> None:
        wrong = type_faults(self)
        checked = with_defaults(self, wrong)
        faults = (*wrong.values(), *(() if checked is None else checked.faults()))
        if faults:
            raise ProgramError(
                f"These settings of {type(self).__name__} cannot work:\n"
                + "\n".join(f"  - {fault}" for fault in faults),
                faults=faults,
            )

    def faults(self) -> Iterator[str]:
        """What is wrong with these settings, a text each. A subclass yields its own after those of `super()`."""
        yield from ()

    def below_one(self, *names: str) -> Iterator[str]:
        """A fault for each of these settings that is below 1."""
        return (f"{name}={getattr(self, name)}: at least 1" for name in names if getattr(self, name) < 1)

    def one_below_one(self, *names: str) -> Iterator[str]:
        """A fault for each of these settings, tuples of numbers, that has one below 1."""
        values = ((name, getattr(self, name)) for name in names)
        return (f"{name}={value}: each at least 1" for name, value in values if any(size < 1 for size in value))

    def negative(self, *names: str) -> Iterator[str]:
        """A fault for each of these settings that is below 0."""
        return (f"{name}={getattr(self, name)}: at least 0" for name in names if getattr(self, name) < 0)

    def not_positive(self, *names: str) -> Iterator[str]:
        """A fault for each of these settings that is not above 0."""
        return (f"{name}={getattr(self, name)}: above 0" for name in names if not getattr(self, name) > 0)

    def above(self, most: int, *names: str) -> Iterator[str]:
        """A fault for each of these settings that is above `most`; None is not."""
        values = ((name, getattr(self, name)) for name in names)
        return (f"{name}={value}: at most {most:,}" for name, value in values if value is not None and value > most)

    def outside_unit(self, *names: str) -> Iterator[str]:
        """A fault for each of these settings that is not between 0 and 1."""
        return (f"{name}={getattr(self, name)}: between 0 and 1" for name in names if not 0 <= getattr(self, name) <= 1)


@dataclass(frozen=True, kw_only=True)
class AgentConfig(CheckedConfig):
    """Settings that every agent has. An agent adds its own, and may change the defaults.

    Attributes:
        environment: a name (catch, gym:CartPole-v1) or where a function is that makes one (module:function,
            path/to/file.py:function); see `topology.environments.make_environment`.
        num_actors: how many actors.
        environments_per_actor: environments that each actor plays in step, with one call of the policy for all.
        seed: of everything random, together with each node's own seed.
        max_actor_steps: steps of all actors after which the program ends; None for never.
        max_restarts: how often each node may fail and be started again before its failure ends the program; see
            `restarts` beside each agent, which says so to a launcher.
        num_caches: cachers between the learner and the actors, which use them in turn.
        updates_per_call: updates made in one call of the compiled learner, with one request for all their batches.
        batch_size: items of an update.
        max_in_flight: items of an actor that may be on their way to the table before it waits.
        variable_update_period: steps of an actor between two requests for weights.
        cache_refresh_ms: how often a cacher asks the learner for weights.
        cache_stale_ms: age of weights above which a cacher does not serve them.
        num_evaluators: nodes that evaluate, each with a seed of its own; 0 for a program without evaluations.
        evaluation_period: actor steps between two evaluations.
        evaluation_episodes: episodes of each evaluation.
        final_evaluation_episodes: episodes of the evaluation after the last step; 0 for none.
        final_evaluation_timeout_s: seconds after the last step in which that evaluation must end, or the program ends
            without it.
        max_evaluation_steps: steps after which an episode of an evaluation is cut off: what it gave until then counts.
        checkpoint_period_s: seconds between two states of the learner on disk; one more is saved at the end.
        checkpoint_replay: whether the replay table is saved too, as often as the learner's state and at the end, so
            that a run that goes on begins with it.
        tensorboard: whether all rows of the metrics are also written as event files for TensorBoard, below
            `tensorboard` in the run directory.
        inference_servers: nodes that choose the actions of the actors, which ask them in turn and hold no weights; 0
            for actors with weights of their own.
        inference_batch_size: requests of actors that such a node gathers for one call of the policy; None for those of
            all actors that ask it.
        inference_timeout_ms: what the first request of a batch waits at most for more.
        learner_devices: devices of its process that the learner spreads each batch over; None for one.
        accelerator_roles: who computes on the accelerator, if there is one: "learner", "evaluator", "actor",
            "inference". The others compute on the CPU.
        accelerator_memory_fraction: part of an accelerator's memory that each process with one takes; None for what
            JAX takes, nearly all. Where several processes have one it must be given, so that none of them finds it
            taken.

    Raises:
        ProgramError: settings that cannot work; the text lists all of them.
    """

    environment: str = "catch"
    num_actors: int = 4
    environments_per_actor: int = 1
    seed: int = 0
    max_actor_steps: int | None = 50_000
    max_restarts: int = 0
    num_caches: int = 1
    updates_per_call: int = 8
    batch_size: int = 64
    max_in_flight: int = 32
    variable_update_period: int = 50
    cache_refresh_ms: int = 200
    cache_stale_ms: int = 10_000
    num_evaluators: int = 1
    evaluation_period: int = 2_000
    evaluation_episodes: int = 10
    final_evaluation_episodes: int = 100
    final_evaluation_timeout_s: float = 300.0
    max_evaluation_steps: int = 100_000
    checkpoint_period_s: float = 60.0
    checkpoint_replay: bool = False
    tensorboard: bool = False
    inference_servers: int = 0
    inference_batch_size: int | None = None
    inference_timeout_ms: float = 5.0
    learner_devices: int | None = None
    accelerator_roles: tuple[str, ...] = ("learner",)
    accelerator_memory_fraction: float | None = None

    @property
    def items_per_call(self) -> int:
        """Items that one call of the learner takes: `updates_per_call * batch_size`."""
        return self.updates_per_call * self.batch_size

    @property
    def num_final_evaluations(self) -> int:
        """Evaluations that follow the last step, one of each evaluator."""
        return self.num_evaluators if self.final_evaluation_episodes else 0

    @property
    def requests_per_batch(self) -> int:
        """Requests that make a batch of an inference server: `inference_batch_size`, or those of all its actors."""
        return self.inference_batch_size or -(-self.num_actors // max(1, self.inference_servers))

    def faults(self) -> Iterator[str]:
        yield from super().faults()
        yield from self.below_one("num_actors", "updates_per_call", "batch_size", "max_in_flight")
        yield from self.below_one("variable_update_period", "cache_refresh_ms", "evaluation_period")
        yield from self.below_one("evaluation_episodes", "max_evaluation_steps", "environments_per_actor")
        yield from self.not_positive("checkpoint_period_s", "final_evaluation_timeout_s")
        if self.max_actor_steps is not None and self.max_actor_steps < 1:
            yield f"max_actor_steps={self.max_actor_steps}: at least 1, or None for a run without end"
        yield from self.above(MOST_STEPS, "max_actor_steps")
        yield from self.negative("num_caches", "final_evaluation_episodes", "inference_servers", "inference_timeout_ms")
        yield from self.negative("seed", "max_restarts", "num_evaluators")
        yield from self.above(MOST_NODES, "num_actors", "num_caches", "num_evaluators", "inference_servers")
        yield from self.above(MOST_NODES, "environments_per_actor")
        yield from self.above(MOST_SECONDS, "checkpoint_period_s", "final_evaluation_timeout_s")
        yield from self.above(1_000 * MOST_SECONDS, "cache_refresh_ms", "cache_stale_ms", "inference_timeout_ms")
        if self.cache_stale_ms <= self.cache_refresh_ms:
            yield (
                f"cache_stale_ms={self.cache_stale_ms} is not above cache_refresh_ms={self.cache_refresh_ms}: weights "
                "would be stale before they are refreshed"
            )
        if self.items_per_call > MOST_ITEMS:
            yield f"updates_per_call * batch_size={self.items_per_call}: at most {MOST_ITEMS:,}"
        yield from self._inference_faults()
        yield from self._device_faults()

    def _inference_faults(self) -> Iterator[str]:
        size, servers = self.inference_batch_size, self.inference_servers
        if size is not None and size < 1:
            yield f"inference_batch_size={size}: at least 1, or None for the requests of all actors of a server"
        elif size is not None and servers > 0 and size > -(-self.num_actors // servers):
            yield (
                f"inference_batch_size={size}: with num_actors={self.num_actors} and inference_servers={servers} no "
                "batch would ever be full: lower it"
            )

    def _device_faults(self) -> Iterator[str]:
        devices, fraction = self.learner_devices, self.accelerator_memory_fraction
        if devices is not None and devices < 1:
            yield f"learner_devices={devices}: at least 1, or None for one"
        elif devices is not None and self.batch_size % devices:
            yield f"learner_devices={devices} does not divide batch_size={self.batch_size}: each takes an equal part"
        if fraction is not None and not 0 < fraction <= 1:
            yield f"accelerator_memory_fraction={fraction}: above 0 and at most 1, or None for what JAX takes"
        nodes = {"learner": 1, "evaluator": self.num_evaluators}
        nodes |= {"actor": self.num_actors, "inference": self.inference_servers}
        if unknown := set(self.accelerator_roles) - set(nodes):
            yield f"accelerator_roles: {', '.join(map(repr, sorted(unknown)))} is none of {', '.join(nodes)}"
            return
        owners = sum(nodes[role] for role in set(self.accelerator_roles))
        if owners > 1 and fraction is None:
            yield (
                f"accelerator_roles={self.accelerator_roles} gives {owners} nodes an accelerator. As processes on one "
                "machine the first would take nearly all of its memory from the others: give it to one node, or set "
                f"accelerator_memory_fraction (at most {1 / owners:.2g} if they share one)"
            )


@dataclass(frozen=True, kw_only=True)
class ReplayConfig(AgentConfig):
    """Settings of an agent that samples what it has seen, each item several times.

    Attributes:
        min_replay_size: items in the table before the first update.
        max_replay_size: the oldest leave above this.
        samples_per_insert: how often an item is sampled on average; None lets actors and learner run freely.
        samples_per_insert_tolerance: how far samples may run from that, as a part of `min_replay_size`.
    """

    min_replay_size: int = 1_000
    max_replay_size: int = 100_000
    samples_per_insert: float | None = 32.0
    samples_per_insert_tolerance: float = 0.25

    @property
    def error_buffer(self) -> float:
        """How far inserts and samples may run from `samples_per_insert`, in samples, either way."""
        if self.samples_per_insert is None:
            raise ValueError("samples_per_insert is None: there is no ratio to keep")
        tolerance = self.samples_per_insert_tolerance * self.min_replay_size * self.samples_per_insert
        # The learner takes the samples of two calls at once, one of them ahead; below that it would wait in steps.
        return max(tolerance, 2 * self.items_per_call, self.samples_per_insert)

    def updates_of_inserts(self, inserts: int) -> int | None:
        """About how many updates follow so many inserts; None when nobody can know."""
        if self.samples_per_insert is None:
            return None
        return max(1, round((inserts - self.min_replay_size) * self.samples_per_insert / self.batch_size))

    def faults(self) -> Iterator[str]:
        yield from super().faults()
        yield from self.below_one("min_replay_size", "max_replay_size")
        yield from self.above(MOST_ITEMS, "max_replay_size")
        if self.min_replay_size > self.max_replay_size:
            yield (
                f"min_replay_size={self.min_replay_size} is above max_replay_size={self.max_replay_size}: the learner "
                "would wait for ever"
            )
        if self.max_actor_steps is not None and 1 <= self.max_actor_steps < self.min_replay_size:
            yield (  # an item begins with a step of its own, whatever it is
                f"max_actor_steps={self.max_actor_steps} is below min_replay_size={self.min_replay_size}: the program "
                "would end before the first update"
            )
        if self.samples_per_insert is not None and self.samples_per_insert <= 0:
            yield f"samples_per_insert={self.samples_per_insert}: above 0, or None to let both sides run freely"
        yield from self.negative("samples_per_insert_tolerance")
