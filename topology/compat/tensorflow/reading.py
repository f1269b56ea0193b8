"""From sessions to datasets of TensorFlow, and faults that TensorFlow reports with a code of our choice."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from topology.compat.tensorflow.sessions import Session, opener, reader

__all__ = ["not_found", "read_on", "read_sessions", "unless_not_found", "without_prefetch"]


@tf.autograph.experimental.do_not_convert  # type: ignore[untyped-decorator]
def read_sessions(begin: Callable[..., Session], arguments: Sequence[Any], specs: Sequence[Any]) -> Any:
    """A dataset of what a session gives: tuples of tensors. Each iterator has a session of its own.

    Args:
        begin: makes the session, of the values of `arguments`.
        arguments: tensors.
        specs: of the tensors of an element.
    """
    sessions = tf.data.Dataset.from_generator(
        opener(begin),
        args=tuple(arguments),
        output_signature=(tf.TensorSpec((), tf.int64), tf.TensorSpec((), tf.string)),
    )
    read = reader()

    @tf.autograph.experimental.do_not_convert  # type: ignore[untyped-decorator]
    def read_session(number: Any, fault: Any) -> Any:
        return tf.data.Dataset.from_generator(
            read, args=(unless_not_found(fault, number),), output_signature=tuple(specs)
        )

    return without_prefetch(sessions.flat_map(read_session))


def read_on(session: Session, specs: Sequence[Any]) -> Any:
    """A dataset of what a session has not given yet; for one iterator.

    Args:
        session: one that was opened, or was not yet.
        specs: of the tensors of an element.
    """
    return read_sessions(lambda: session, (), specs)


def without_prefetch(dataset: Any) -> Any:
    """The dataset, read ahead no further than its session does: TensorFlow would add a stage of its own."""
    options = tf.data.Options()
    options.experimental_optimization.inject_prefetch = False
    return dataset.with_options(options)


def unless_not_found(fault: Any, value: Any) -> Any:
    """The int64 `value`; fails with a NotFoundError when the text `fault` is not empty."""
    return tf.cond(tf.strings.length(fault) > 0, lambda: not_found(fault), lambda: value)


def not_found(text: Any) -> Any:
    """Fails with a NotFoundError that has this text: the one op that lets us choose it is one that reads files."""
    return tf.cast(tf.strings.length(tf.io.read_file(text)), tf.int64)
