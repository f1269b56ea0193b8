"""Reading a dataset in Python, element by element, in eager programs.

TensorFlow takes half a millisecond for every element of such a loop, whatever it holds. Here it hands over a portion at
a time, and that is taken apart in Python. A loop that waits comes back to Python ten times a second, so that Ctrl-C
ends it.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Sequence
from typing import Any, Self, final

import tensorflow as tf
from tensorflow.python.data.ops.iterator_ops import OwnedIterator

from topology.compat.tensorflow.reading import without_prefetch
from topology.nodes.replay import ReplaySample
from topology.nodes.replay.structure import flatten, unflatten

__all__ = ["Elements", "hasten_other_stages"]

_MOST = 1 << 62
_MOST_SPECS = 256
_composers: dict[int, tuple[Any, Callable[[Sequence[Any]], Any]]] = {}  # by the identity of the spec


def hasten_other_stages() -> None:
    """Lets samples of other datasets, behind `take` or `prefetch`, be composed by us, in a third of the time.

    TensorFlow asks the spec of the elements for this method first, and goes its own way where there is none.
    """
    ReplaySample._from_compatible_tensor_list = _composed  # type: ignore[attr-defined]  # noqa: SLF001


def _composed(spec: ReplaySample, tensors: Sequence[Any]) -> Any:
    known = _composers.get(id(spec))
    if known is None or known[0] is not spec:
        if len(_composers) >= _MOST_SPECS:
            _composers.clear()
        known = _composers[id(spec)] = spec, _composer(spec)
    return known[1](tensors)


def _composer(spec: ReplaySample) -> Callable[[Sequence[Any]], Any]:
    leaves, shape = flatten(spec)
    if all(type(leaf) is tf.TensorSpec for leaf in leaves):
        return functools.partial(unflatten, shape)
    return _leave_it_to_tensorflow


def _leave_it_to_tensorflow(tensors: Sequence[Any]) -> Any:
    del tensors
    raise AttributeError("a sample with leaves that are no plain tensors")


@final
class Elements(OwnedIterator):  # type: ignore[misc]
    """The iterator of a dataset of portions, as one of what they hold. Thread-safe.

    In functions of TensorFlow it goes on where it is: from then on TensorFlow takes the portions apart.

    Args:
        dataset: what it looks like: a dataset of the elements.
        portions: tuples of tensors [n, ...] each, of any n >= 0.
        compose: from the tensors of an element to the element.
        is_whole: whether a portion that holds anything is one element.
        join: from portions to a dataset of elements, as it is done by TensorFlow.
    """

    def __init__(
        self,
        dataset: Any,
        portions: Any,
        compose: Callable[[Sequence[Any]], Any],
        join: Callable[[Any], Any],
        *,
        is_whole: bool = False,
    ) -> None:
        # Not that of the parent, which would begin to read the dataset.
        self._dataset = dataset
        self._element_spec = dataset.element_spec
        self._flat_output_types = [spec.dtype for spec in tf.nest.flatten(dataset.element_spec)]
        self._flat_output_shapes = [spec.shape for spec in tf.nest.flatten(dataset.element_spec)]
        self._get_next_call_count = 0
        self._portions = iter(portions)
        self._compose = compose
        self._join = join
        self._is_whole = is_whole
        self._lock = threading.Lock()
        self._ready: list[Any] = []  # the next one last
        self._by_tensorflow: Any = None

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Any:
        if self._by_tensorflow is not None or not tf.executing_eagerly():
            return super().__next__()
        with self._lock:
            while not self._ready:
                self._ready = self._take_apart(next(self._portions))
            tensors = self._ready.pop()
        return self._compose(tensors)

    def get_next(self) -> Any:
        """The next element; `OutOfRangeError` at the end."""
        if self._by_tensorflow is not None or not tf.executing_eagerly():
            return super().get_next()
        try:
            return next(self)
        except StopIteration:
            raise tf.errors.OutOfRangeError(None, None, "End of sequence") from None

    def get_next_as_optional(self) -> Any:
        """The next element, or none at the end."""
        if self._by_tensorflow is not None or not tf.executing_eagerly():
            return super().get_next_as_optional()
        try:
            return tf.experimental.Optional.from_value(next(self))
        except StopIteration:
            return tf.experimental.Optional.empty(self._element_spec)

    def _take_apart(self, columns: Sequence[Any]) -> list[Any]:
        size = columns[0].shape[0]
        if not size:
            return []
        if self._is_whole:
            return [columns]
        return list(zip(*(tf.unstack(column, size) for column in columns), strict=True))[::-1]

    @property
    def _iterator_resource(self) -> Any:
        """What TensorFlow asks of an iterator that it is to read itself."""
        with self._lock, tf.init_scope():
            if self._by_tensorflow is None:
                self._by_tensorflow = iter(self._rest())
        return self._by_tensorflow._iterator_resource  # noqa: SLF001 - of its class

    def _rest(self) -> Any:
        """A dataset of what has not been read."""
        plain = tf.autograph.experimental.do_not_convert
        portions = tf.data.Dataset.range(_MOST).map(plain(lambda _: self._portions.get_next_as_optional()))
        rest = portions.take_while(plain(lambda portion: portion.has_value()))
        rest = rest.map(plain(lambda portion: portion.get_value()))
        if self._ready:
            columns = tuple(tf.stack(column) for column in zip(*self._ready[::-1], strict=True))
            self._ready = []
            rest = tf.data.Dataset.from_tensors(columns).concatenate(rest)
        return self._join(without_prefetch(rest))
