"""Objects to bytes and back: pickle 5, with the memory of arrays out of band.

Numpy's own pickling writes out its dtype and a reconstruction function for every array, which for ten small arrays
costs more than the call that carries them. Plain arrays therefore get a reducer of our own: dtype as a short string,
small ones in the stream, large ones out of band and not copied. Everything else is pickled as always. What pickle
refuses (lambdas, local functions and classes) and what lives in `__main__`, which is a different module in every
process, goes through cloudpickle.

Neither numpy nor cloudpickle is imported before it is needed.
"""

from __future__ import annotations

import copyreg
import io
import pickle
import sys
import traceback
from collections import ChainMap
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from topology import errors
from topology.nodes.courier.wire import MAX_BUFFERS, Buffer

if TYPE_CHECKING:
    import numpy as np

__all__ = [
    "Payload",
    "allocate",
    "decode",
    "decode_error",
    "encode",
    "encode_call",
    "encode_error",
    "send_jax_as_numpy",
    "set_remote_error_adapter",
]

_PROTOCOL = 5
_OUT_OF_BAND_BYTES = 2048
"""Arrays smaller than this are copied into the stream: cheaper than a buffer of their own."""

_PLAIN_KINDS = frozenset("biufc")  # kinds whose dtype is fully told by its string
_ATOMS = frozenset({int, float, str, bool, type(None)})

Payload = tuple[bytes, Sequence[Buffer]]
"""The pickle stream and the buffers that belong to it."""

_Reducer = Callable[[Any], Any]


def encode(value: object) -> Payload:
    """Serialises `value`. The buffers are views of the caller's memory: send them before it changes.

    Raises:
        TypeError, pickle.PicklingError, ...: whatever cloudpickle says about an object that cannot be pickled.
    """
    if type(value) in _ATOMS:
        return pickle.dumps(value, _PROTOCOL), ()
    buffers: list[pickle.PickleBuffer] = []
    try:
        body = _dumps(value, buffers)
        if b"__main__" not in body:
            if len(buffers) > MAX_BUFFERS:
                return pickle.dumps(value, _PROTOCOL), ()
            return body, [buffer.raw() for buffer in buffers] if buffers else ()
    except (pickle.PicklingError, AttributeError, TypeError):
        pass  # cloudpickle may be able to; when it is not, its own error says why
    buffers = []
    body = _cloud_dumps(value, buffers)
    return body, [buffer.raw() for buffer in buffers]


def decode(body: Buffer, buffers: Sequence[Buffer]) -> Any:
    """The object that `encode` was given. Arrays share memory with `buffers` and are writable if those are."""
    return pickle.loads(body, buffers=buffers) if buffers else pickle.loads(body)


def encode_call(args: tuple[object, ...], kwargs: dict[str, object]) -> Payload:
    """Serialises the arguments of a call."""
    if not kwargs:
        for arg in args:
            if type(arg) not in _ATOMS:
                break
        else:
            return pickle.dumps((args, kwargs), _PROTOCOL), ()
    return encode((args, kwargs))


def allocate(size: int) -> memoryview:
    """Writable memory for `size` bytes, not zeroed when numpy is there to give it."""
    numpy = sys.modules.get("numpy")
    if numpy is None or size < 4096 or not hasattr(numpy, "empty"):
        return memoryview(bytearray(size))
    return memoryview(numpy.empty(size, "u1"))


def encode_error(error: BaseException) -> Payload:
    """Serialises an exception, with its traceback as text; falls back to the text alone."""
    text = "".join(traceback.format_exception(error))
    kind = type(error)
    name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
    pickled = b""
    if isinstance(error, Exception):  # a SystemExit of a handler must not end the caller
        try:
            pickled = pickle.dumps(error, _PROTOCOL)
            if b"__main__" in pickled:
                import cloudpickle

                pickled = cloudpickle.dumps(error, _PROTOCOL)
        except Exception:  # noqa: BLE001 - pickling runs any code; the text goes out in any case
            pickled = b""
    return pickle.dumps((name, _message(error), text, pickled), _PROTOCOL), ()


def decode_error(body: Buffer) -> Exception:
    """The exception that `encode_error` was given, or a `RemoteError` that tells about it.

    Its `__cause__` holds the remote traceback.
    """
    name, message, text, pickled = pickle.loads(body)
    error: Exception | None = None
    if pickled:
        try:
            error = pickle.loads(pickled)
        except Exception:  # noqa: BLE001 - any code may run here; the text is enough to go on with
            error = None
    if not isinstance(error, Exception):
        error = errors.RemoteError(f"{name}: {message}", type_name=name, remote_traceback=text)
    if _adapt_remote_error is not None:
        error = _adapt_remote_error(error, text)
    error.__cause__ = RemoteTraceback(text)
    return error


_adapt_remote_error: Callable[[Exception, str], Exception] | None = None


def set_remote_error_adapter(adapter: Callable[[Exception, str], Exception] | None) -> None:
    """Has every exception that comes back from a handler pass `adapter(error, traceback_text)`; None ends that."""
    global _adapt_remote_error
    _adapt_remote_error = adapter


class RemoteTraceback(Exception):
    """Shows the traceback of the other side above the local one."""

    def __str__(self) -> str:
        return f'\n"""\n{self.args[0]}"""'


def _message(error: BaseException) -> str:
    try:
        return str(error)
    except Exception as broken:  # noqa: BLE001 - a user's __str__ may do anything
        return f"<{type(error).__name__}, whose __str__ raised {type(broken).__name__}>"


# --- pickling -------------------------------------------------------------------------------------------------------

_table: dict[type, _Reducer] = {}
_table_key: tuple[int, bool, type | None] = (-1, False, None)
_jax_as_numpy = False


def send_jax_as_numpy(wanted: bool) -> None:
    """From now on arrays of JAX arrive as numpy's: nothing is put on a device of the receiver, which needs no JAX."""
    global _jax_as_numpy
    _jax_as_numpy = wanted


def _dumps(value: object, buffers: list[pickle.PickleBuffer]) -> bytes:
    stream = io.BytesIO()
    pickler = pickle.Pickler(stream, _PROTOCOL, buffer_callback=buffers.append)
    pickler.dispatch_table = _dispatch_table()
    pickler.dump(value)
    return stream.getvalue()


def _cloud_dumps(value: object, buffers: list[pickle.PickleBuffer]) -> bytes:
    import cloudpickle

    stream = io.BytesIO()
    pickler = cloudpickle.Pickler(stream, _PROTOCOL, buffer_callback=buffers.append)
    if jax_array := _jax_array():
        pickler.dispatch_table = ChainMap({jax_array: _reduce_jax_array}, pickler.dispatch_table)
    pickler.dump(value)
    return stream.getvalue()


def _jax_array() -> type | None:
    """The type of JAX's arrays, where they are to travel as numpy's, and JAX is there."""
    return getattr(sys.modules.get("jax._src.array"), "ArrayImpl", None) if _jax_as_numpy else None


def _dispatch_table() -> dict[type, _Reducer]:
    """What copyreg knows, arrays once numpy is there, and those of JAX where that is wanted."""
    global _table, _table_key
    numpy = sys.modules.get("numpy")
    ndarray = getattr(numpy, "ndarray", None)  # None also while numpy is half imported by another thread
    jax_array = _jax_array()
    key = (len(copyreg.dispatch_table), ndarray is not None, jax_array)
    if key != _table_key:
        table: dict[type, _Reducer] = dict(copyreg.dispatch_table)
        if ndarray is not None:
            table.setdefault(ndarray, _reduce_array)
            if jax_array is not None:
                table[jax_array] = _reduce_jax_array
        _table, _table_key = table, key
    return _table


def _reduce_array(array: np.ndarray[Any, Any]) -> Any:
    dtype = array.dtype
    if dtype.hasobject:
        return array.__reduce_ex__(_PROTOCOL)
    fortran = False
    if not array.flags.c_contiguous:
        fortran = array.flags.f_contiguous
        array = array.T if fortran else array.copy("C")
    # Via bytes: numpy exports no buffer of dates and of extension types such as bfloat16.
    kind = dtype.str if dtype.kind in _PLAIN_KINDS and not dtype.metadata else dtype
    if array.nbytes < _OUT_OF_BAND_BYTES:
        return _array, (bytearray(array.tobytes()), kind, array.shape, fortran)
    # Of the array itself, not of a memoryview: CPython before 3.13 crashes when it collects that with its exporter.
    memory: Any = array.reshape(-1).view("u1")  # a buffer, though its type does not say so before Python 3.12
    return _array, (pickle.PickleBuffer(memory), kind, array.shape, fortran)


def _reduce_jax_array(array: Any) -> Any:
    import numpy as np

    host = np.asarray(array)
    if host.ndim == 0:
        return host[()].__reduce_ex__(_PROTOCOL)
    return _reduce_array(host)


_numpy_ndarray: Any = None


def _array(memory: Buffer, dtype: Any, shape: tuple[int, ...], fortran: bool) -> np.ndarray[Any, Any]:
    global _numpy_ndarray
    if _numpy_ndarray is None:
        import numpy as np

        _numpy_ndarray = np.ndarray
    array: np.ndarray[Any, Any] = _numpy_ndarray(shape, dtype, memory)
    return array.T if fortran else array
