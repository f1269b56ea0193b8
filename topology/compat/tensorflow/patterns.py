"""Reverb's PatternDataset: trajectories made of a stream of steps, as a structured writer makes items of them."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, final

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from topology.compat.reverb.patterns import infer_signature
from topology.compat.tensorflow.datasets import Structured
from topology.compat.tensorflow.visits import tracked, visiting
from topology.nodes.replay import ReplaySample, SampleInfo
from topology.nodes.replay.structure import flatten
from topology.nodes.replay.structured_writer import Config, StructuredWriter

__all__ = ["PatternDataset", "pattern_dataset_with_info"]


@final
class PatternDataset(Structured):
    """The trajectories that configs of a structured writer make of the steps of a dataset.

    Args:
        input_dataset: of steps, one after the other.
        configs: which trajectories; their tables and priorities do not matter.
        respect_episode_boundaries: whether no trajectory spans episodes.
        is_end_of_episode: of a step, whether it is the last of its episode.

    Raises:
        ValueError: there is no config, they do not go together, or `is_end_of_episode` does not give a bool.
    """

    @tf.autograph.experimental.do_not_convert  # type: ignore[untyped-decorator]
    def __init__(
        self,
        input_dataset: Any,
        configs: Sequence[Config],
        respect_episode_boundaries: bool,
        is_end_of_episode: Callable[[Any], Any],
    ) -> None:
        configs = list(configs)
        signature = infer_signature(configs, input_dataset.element_spec)
        specs, _ = flatten(signature)
        ends = input_dataset.map(is_end_of_episode)
        if not isinstance(ends.element_spec, tf.TensorSpec) or ends.element_spec.dtype != tf.bool:
            raise ValueError(
                "Invalid `is_end_of_episode`. `is_end_of_episode` must return `bool`, but its return type is "
                f"{ends.element_spec}."
            )
        makers = _Makers(configs, respect_episode_boundaries)
        numbers = tf.data.Dataset.from_generator(tracked(makers.open), output_signature=tf.TensorSpec((), tf.int64))

        @tf.autograph.experimental.do_not_convert  # type: ignore[untyped-decorator]
        def make(number: Any) -> Any:
            steps = input_dataset.map(lambda *step: (step[0] if len(step) == 1 else step, is_end_of_episode(*step)))
            return steps.map(lambda step, ends: makers.trajectories(number, ends, step, specs)).flat_map(_in_turn)

        super().__init__(numbers.flat_map(make), signature)


@tf.autograph.experimental.do_not_convert  # type: ignore[untyped-decorator]
def _in_turn(*by_config: Any) -> Any:
    """The trajectories of a step; each is [0 or 1, ...] for its config, and they may differ in length."""
    dataset = tf.data.Dataset.from_tensor_slices(by_config[0])
    for more in by_config[1:]:
        dataset = dataset.concatenate(tf.data.Dataset.from_tensor_slices(more))
    return dataset


@final
class _Makers:
    """The structured writers of all iterators of a dataset, by number."""

    def __init__(self, configs: Sequence[Config], respect_episode_boundaries: bool) -> None:
        self._configs = configs
        self._clear = respect_episode_boundaries
        self._numbers = itertools.count(1)
        self._writers: dict[int, tuple[StructuredWriter, _Recorder]] = {}

    def open(self) -> Iterator[int]:
        """Gives the number of a new writer, which lives as long as the generator."""
        number = next(self._numbers)
        recorder = _Recorder(StructuredWriter.num_keep_alive_refs(self._configs))
        # One table for each config, so that it is known which of them made a trajectory.
        configs = [Config(config.pattern, str(i), config.conditions, 1.0) for i, config in enumerate(self._configs)]
        self._writers[number] = StructuredWriter(recorder, configs), recorder  # type: ignore[arg-type]
        try:
            yield number
        finally:
            del self._writers[number]

    def trajectories(self, number: Any, ends: Any, step: Any, specs: Sequence[Any]) -> Any:
        """Tensors: for each config, its leaves [0 or 1, ...]."""
        columns = tf.nest.flatten(step)
        dtypes = [spec.dtype for spec in specs] * len(self._configs)
        found = tf.numpy_function(visiting(self._append), [number, ends, *columns], dtypes)
        for tensor, spec in zip(found, itertools.cycle(specs)):
            tensor.set_shape((None, *spec.shape))
        return tuple(tuple(found[i : i + len(specs)]) for i in range(0, len(found), len(specs)))

    def _append(self, number: Any, ends: Any, *columns: Any) -> list[npt.NDArray[Any]]:
        writer, recorder = self._writers[int(number)]
        writer.append(columns)
        if ends:
            writer.end_episode(clear_buffers=self._clear)
        made = recorder.take()
        return [leaf for i, config in enumerate(self._configs) for leaf in _stacked(made.get(str(i)), config, columns)]


def _stacked(trajectory: Any, config: Config, columns: Sequence[Any]) -> list[npt.NDArray[Any]]:
    if trajectory is not None:
        return [np.asarray(leaf)[None] for leaf in flatten(trajectory)[0]]
    empty = []
    for node in config.nodes:
        column = np.asarray(columns[node.flat_source_index])
        shape = column.shape if node.length is None else (node.length, *column.shape)
        empty.append(np.empty((0, *shape), column.dtype))
    return empty


@final
class _Recorder:
    """Takes the place of a trajectory writer: keeps the latest steps, and hands out the trajectories made of them."""

    step_is_open = False

    def __init__(self, num_keep_alive_refs: int) -> None:
        self._most = num_keep_alive_refs
        self._steps: list[Sequence[Any]] = []
        self._made: dict[str, Any] = {}
        self.episode_steps = 0

    @property
    def history(self) -> list[_Column]:
        return [_Column(self._steps, i) for i in range(len(self._steps[-1]))]

    def append(self, step: Sequence[Any], *, partial_step: bool = False) -> None:
        del partial_step
        self._steps.append(step)
        del self._steps[: -self._most]
        self.episode_steps += 1

    def create_item(self, table: str, priority: float, trajectory: Any) -> None:
        del priority
        self._made[table] = trajectory

    def end_episode(self, clear_buffers: bool, timeout_ms: int | None) -> None:
        del timeout_ms
        self.episode_steps = 0
        if clear_buffers:
            self._steps.clear()

    def take(self) -> dict[str, Any]:
        """The trajectories made since the last call, by table."""
        made, self._made = self._made, {}
        return made


@final
class _Column:
    """One column of the latest steps."""

    def __init__(self, steps: Sequence[Sequence[Any]], column: int) -> None:
        self._steps = steps
        self._column = column

    def __len__(self) -> int:
        return len(self._steps)

    def __getitem__(self, index: int | slice) -> Any:
        if isinstance(index, slice):
            return np.stack([step[self._column] for step in self._steps[index]])
        return self._steps[index][self._column]


def pattern_dataset_with_info(
    input_dataset: Any,
    configs: Sequence[Config],
    respect_episode_boundaries: bool,
    is_end_of_episode: Callable[[Any], Any],
) -> Any:
    """The same as samples: `ReplaySample` with zeros for info. See `PatternDataset`."""
    dataset = PatternDataset(input_dataset, configs, respect_episode_boundaries, is_end_of_episode)

    @tf.autograph.experimental.do_not_convert  # type: ignore[untyped-decorator]
    def with_info(*data: Any) -> ReplaySample:
        return ReplaySample(SampleInfo.zeros(), data[0] if len(data) == 1 else data)

    return dataset.map(with_info)
