"""Specs: shape, dtype and name of an array; and signatures, which are structures of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias, final

import numpy as np
import numpy.typing as npt

from topology.nodes.replay.structure import Path, flatten, paths, show_path, unflatten

__all__ = ["LeafSpec", "Signature", "Spec"]

# What a layout knows of one of its leaves: where it is, its shape with the time axis, and its dtype.
LeafSpec: TypeAlias = tuple[Path, tuple[int, ...], "np.dtype[Any]"]


@final
class Spec:
    """Shape and dtype that data must have. A dimension of None may be of any length.

    Equal to anything with the same shape and dtype: a dm_env spec, a `jax.ShapeDtypeStruct`, a `tf.TensorSpec`.

    Attributes:
        bounds: least and greatest values, as TensorFlow's bounded specs have them. Only kept: data is not compared.
    """

    __slots__ = ("bounds", "dtype", "name", "shape")

    def __init__(
        self,
        shape: Sequence[int | None],
        dtype: npt.DTypeLike,
        name: str | None = None,
        bounds: tuple[Any, Any] | None = None,
    ) -> None:
        self.shape = tuple(shape)
        self.dtype: np.dtype[Any] = np.dtype(dtype)
        if self.dtype.kind in "SU":
            self.dtype = np.dtype(object)  # text of any length, as bytes
        self.name = name
        self.bounds = bounds

    @classmethod
    def of(cls, spec: Any) -> Spec:
        """The spec of anything with `shape` and `dtype`; of a numpy dtype, a scalar of it.

        Raises:
            TypeError: `spec` has neither.
        """
        if isinstance(spec, np.dtype) or (isinstance(spec, type) and issubclass(spec, np.generic)):
            return cls((), spec)
        shape, dtype = getattr(spec, "shape", None), getattr(spec, "dtype", None)
        if shape is None or dtype is None:
            raise TypeError(f"a signature is made of objects with shape and dtype, got {spec!r}")
        bounds = None
        if hasattr(dtype, "as_numpy_dtype"):  # TensorFlow has dtypes of its own, and shapes
            dtype = dtype.as_numpy_dtype
            bounds = (spec.minimum, spec.maximum) if hasattr(spec, "minimum") and hasattr(spec, "maximum") else None
        sizes = shape.as_list() if hasattr(shape, "as_list") else shape
        return cls(tuple(sizes), dtype, getattr(spec, "name", None), bounds)

    def admits(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> bool:
        """Whether data of that shape and dtype fits."""
        return (
            self.dtype == dtype
            and len(self.shape) == len(shape)
            and all(mine is None or mine == its for mine, its in zip(self.shape, shape, strict=True))
        )

    def __eq__(self, other: object) -> bool:
        try:
            its = other if isinstance(other, Spec) else Spec.of(other)
        except TypeError:
            return False
        return self.shape == its.shape and self.dtype == its.dtype

    def __hash__(self) -> int:
        return hash((self.shape, self.dtype))

    def __repr__(self) -> str:
        shape = ", ".join("?" if size is None else str(size) for size in self.shape)
        name = f" {self.name}" if self.name else ""
        return f"<{self.dtype}[{shape}]{name}>"

    def __reduce__(self) -> tuple[Any, ...]:
        return Spec, (self.shape, self.dtype, self.name, self.bounds)


@final
class Signature:
    """What the items of a table must look like, leaf by leaf."""

    def __init__(self, tree: Any) -> None:
        leaves, shape = flatten(tree)
        self.paths = paths(shape)
        self.specs = [Spec.of(leaf) for leaf in leaves]
        self.tree = unflatten(shape, self.specs)

    def check(self, table: str, leaves: Sequence[LeafSpec], *, of_steps: bool = False) -> None:
        """Checks the leaves of an item.

        Args:
            table: for messages.
            leaves: of the item.
            of_steps: whether it will do that the signature is that of a step of the item.

        Raises:
            ValueError: their number, a shape or a dtype differs; the text names the path and both sides.
        """
        if of_steps and self._admits_steps(leaves):
            return
        if len(leaves) != len(self.specs):
            given = ", ".join(show_path(path) for path, _, _ in leaves)
            wanted = ", ".join(map(show_path, self.paths))
            raise ValueError(
                f"table {table!r}: the item has {len(leaves)} columns ({given}), "
                f"the table's signature has {len(self.specs)} ({wanted})"
            )
        for (path, shape, dtype), expected, wanted_at in zip(leaves, self.specs, self.paths, strict=True):
            if not expected.admits(shape, dtype):
                place = show_path(path)
                if path != wanted_at:
                    place += f" (in the signature: {show_path(wanted_at)})"
                raise ValueError(
                    f"table {table!r}: column {place} of the item is {Spec(shape, dtype)}, "
                    f"the table's signature says {expected}"
                )

    def _admits_steps(self, leaves: Sequence[LeafSpec]) -> bool:
        return len(leaves) == len(self.specs) and all(
            bool(shape) and spec.admits(shape[1:], dtype)
            for (_, shape, dtype), spec in zip(leaves, self.specs, strict=True)
        )
