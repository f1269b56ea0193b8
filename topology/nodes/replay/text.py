"""Text in columns: strings become bytes (UTF-8), as in Reverb, and a column of bytes holds cells of any length."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["as_array", "as_bytes"]


def as_array(value: Any) -> npt.NDArray[Any]:
    """The value as an array; text as an array of the dtype `object` that holds bytes.

    Raises:
        TypeError: it holds objects other than text.
    """
    if isinstance(value, str | bytes):  # numpy would strip zeros from the end
        cell = np.empty((), object)
        cell[()] = value.encode() if isinstance(value, str) else value
        return cell
    array = np.asarray(value)
    return as_bytes(array) if array.dtype.kind in "SUO" else array


def as_bytes(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """An array of text as an array of objects that are bytes.

    Raises:
        TypeError: it holds other objects.
    """
    cells = np.empty(array.shape, object)
    for index, cell in np.ndenumerate(array):
        if not isinstance(cell, str | bytes):
            kind = "integers beyond 64 bits" if isinstance(cell, int) else f"values of type {type(cell).__name__}"
            raise TypeError(f"{kind} cannot be stored: give numbers, booleans, text, or arrays")
        cells[index] = cell.encode() if isinstance(cell, str) else bytes(cell)
    return cells
