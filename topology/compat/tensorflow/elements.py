"""Reading a dataset in Python, element by element, in eager programs.

TensorFlow takes a fraction of a millisecond for every element of such a loop, whatever it holds, and more for every
visit to Python. Here nothing of it is between the program and the session but the making of tensors. A loop that waits
is in Python, so that Ctrl-C ends it.
"""

from __future__ import annotations

import functools
import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Any, Self, final

import tensorflow as tf
from tensorflow.python.data.ops.iterator_ops import OwnedIterator

from topology.compat.additions import add, with_additions
from topology.compat.tensorflow.reading import read_on, without_prefetch
from topology.compat.tensorflow.sessions import VISIT_S, Session
from topology.compat.tensorflow.streams import Columns
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
    with_additions(_hasten)


def _hasten() -> None:
    add(ReplaySample, _from_compatible_tensor_list=_composed)


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
    """The iterator of a dataset, read from a session in Python. Thread-safe.

    In functions of TensorFlow it goes on where it is: from then on TensorFlow reads the session.

    Args:
        dataset: what it looks like: a dataset of the elements.
        begin: begins the session.
        compose: from the tensors of an element to the element.
        join: from a dataset of tuples of columns, which may be empty, to one of elements, as TensorFlow does it.
        specs: of the columns.
        is_whole: whether columns that hold anything are one element; otherwise they are elements one after the other.
    """

    def __init__(
        self,
        dataset: Any,
        begin: Callable[[], Session],
        compose: Callable[[Sequence[Any]], Any],
        join: Callable[[Any], Any],
        specs: Sequence[Any],
        *,
        is_whole: bool = False,
    ) -> None:
        # Not that of the parent, which would begin to read the dataset.
        self._dataset = dataset
        self._element_spec = dataset.element_spec
        self._flat_output_types = [spec.dtype for spec in tf.nest.flatten(dataset.element_spec)]
        self._flat_output_shapes = [spec.shape for spec in tf.nest.flatten(dataset.element_spec)]
        self._get_next_call_count = 0
        self._begin = begin
        self._compose = compose
        self._join = join
        self._specs = specs
        self._dtypes = [spec.dtype for spec in specs]
        self._is_whole = is_whole
        self._lock = threading.Lock()
        self._session: Session | None = None
        self._is_open = False
        self._ready: list[Any] = []  # tensors of elements, the next one last
        self._by_tensorflow: Any = None

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Any:
        if self._by_tensorflow is not None or not tf.executing_eagerly():
            return super().__next__()
        with self._lock:
            while not self._ready:
                pieces = _told_as_tensorflow_does(self._read)
                self._ready = [each for piece in pieces for each in self._taken_apart(piece)][::-1]
            tensors = self._ready.pop()
            if not self._ready and self._session is not None:
                self._session.ask_ahead()
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

    def _begun(self) -> Session:
        if self._session is None:
            self._session = self._begin()
            weakref.finalize(self, self._session.close).atexit = False
        return self._session

    def _read(self) -> list[Columns]:
        session = self._begun()
        if not self._is_open:
            while (fault := session.open(VISIT_S)) is None:
                pass
            if fault:
                raise tf.errors.NotFoundError(None, None, fault)
            self._is_open = True
        return list(session.read(VISIT_S))

    def _taken_apart(self, columns: Columns) -> list[Any]:
        size = len(columns[0])
        if not size:
            return []
        if size == 1 and not self._is_whole:
            columns = [column[0] for column in columns]
        tensors = list(map(tf.constant, columns, self._dtypes))  # in half the time of `convert_to_tensor`
        if size == 1 or self._is_whole:
            return [tensors]
        return list(zip(*(tf.unstack(tensor, size) for tensor in tensors), strict=True))

    @property
    def _iterator_resource(self) -> Any:
        """What TensorFlow asks of an iterator that it is to read itself."""
        with self._lock, tf.init_scope():
            if self._by_tensorflow is None:
                self._by_tensorflow = iter(self._rest())
        return self._by_tensorflow._iterator_resource  # noqa: SLF001 - of its class

    def _rest(self) -> Any:
        """A dataset of what has not been read."""
        rest = read_on(self._begun(), self._specs)
        if self._ready:
            columns = tuple(tf.stack(column) for column in zip(*self._ready[::-1], strict=True))
            self._ready = []
            rest = tf.data.Dataset.from_tensors(columns).concatenate(rest)
        return self._join(without_prefetch(rest))


def _told_as_tensorflow_does(read: Callable[[], list[Columns]]) -> list[Columns]:
    """What `read` gives; its errors as if TensorFlow had called it."""
    try:
        return read()
    except EOFError:
        raise StopIteration from None
    except tf.errors.OpError:
        raise
    except (ValueError, TypeError) as error:
        raise tf.errors.InvalidArgumentError(None, None, f"{type(error).__name__}: {error}") from error
    except Exception as error:
        raise tf.errors.UnknownError(None, None, f"{type(error).__name__}: {error}") from error
