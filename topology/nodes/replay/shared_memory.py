"""Memory that two processes of one machine see, without a name that could stay behind.

The owner makes an anonymous file and maps it; the other side opens that file through the owner's process. Once both
have let go of it, or died, the kernel frees it. The file cannot shrink, so that neither side can make the other fail
by cutting it; and it begins with a random token, by which the other side knows that it opened the right one.
"""

from __future__ import annotations

import contextlib
import fcntl
import math
import mmap
import os
import secrets
from typing import Any, NamedTuple, final

import numpy as np
import numpy.typing as npt

__all__ = ["FIRST_BYTE", "MemoryAddress", "Region", "aligned", "is_supported", "open_region", "view"]

FIRST_BYTE = 64
"""Where the contents of a region begin, after its token."""

_TOKEN_BYTES = 16
_PAGE = mmap.PAGESIZE
_ALIGNMENT = 64  # of arrays: a cache line, and what jax wants of memory that it uses as it is


class MemoryAddress(NamedTuple):
    """How another process of this machine finds a region."""

    pid: int
    fd: int
    size: int
    token: bytes


def is_supported() -> bool:
    """Whether this system has what regions are made of."""
    return hasattr(os, "memfd_create") and hasattr(fcntl, "F_ADD_SEALS")


@final
class Region:
    """Shared memory made by this process, with its pages in place.

    Args:
        size: bytes; rounded up to whole pages.

    Raises:
        OSError: there is no memory or no file descriptor left for it.
    """

    __slots__ = ("_fd", "address", "memory", "size")

    def __init__(self, size: int) -> None:
        self.size = -(-(FIRST_BYTE + size) // _PAGE) * _PAGE
        self._fd = os.memfd_create("replay", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            # Now, with an error: running out of memory when a page is first written would end the writer.
            os.posix_fallocate(self._fd, 0, self.size)
            fcntl.fcntl(self._fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
            self.memory = _map(self._fd, self.size)
        except BaseException:
            self.close()
            raise
        token = secrets.token_bytes(_TOKEN_BYTES)
        self.memory[:_TOKEN_BYTES] = token
        self.address = MemoryAddress(os.getpid(), self._fd, self.size, token)

    def array(self) -> npt.NDArray[np.uint8]:
        """All of it as an array. The memory stays as long as that, or any view of it."""
        return np.frombuffer(self.memory, np.uint8)

    def close(self) -> None:
        """Nobody can open it any more. Who has it mapped keeps it. Idempotent."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            with contextlib.suppress(OSError):  # whoever closed all descriptors of this process was faster
                os.close(fd)

    def __del__(self) -> None:
        if "_fd" in dir(self):
            self.close()


def open_region(address: MemoryAddress) -> npt.NDArray[np.uint8]:
    """Maps a region of another process. It stays mapped as long as the array, or any view of it.

    Raises:
        OSError: there is no such region that this process may open.
    """
    fd = os.open(f"/proc/{address.pid}/fd/{address.fd}", os.O_RDWR | os.O_CLOEXEC)
    try:
        if not fcntl.fcntl(fd, fcntl.F_GET_SEALS) & fcntl.F_SEAL_SHRINK or os.fstat(fd).st_size < address.size:
            raise OSError(f"descriptor {address.fd} of process {address.pid} is no region of {address.size} bytes")
        memory = _map(fd, address.size)
    finally:
        os.close(fd)
    if memory[:_TOKEN_BYTES] != address.token:
        raise OSError(f"process {address.pid} is another one here: it runs in a container of its own")
    return np.frombuffer(memory, np.uint8)


def _map(fd: int, size: int) -> mmap.mmap:
    # Populated in one go: a fault for each page would cost as much as the copy that follows.
    flags: Any = mmap.MAP_SHARED | mmap.MAP_POPULATE
    return mmap.mmap(fd, size, flags)


def aligned(size: int) -> int:
    """`size` bytes, rounded up so that another array may follow."""
    return -(-size // _ALIGNMENT) * _ALIGNMENT


def view(memory: npt.NDArray[np.uint8], offset: int, dtype: np.dtype[Any], shape: tuple[int, ...]) -> npt.NDArray[Any]:
    """The array at `offset`.

    Raises:
        ValueError: the memory ends before it does.
    """
    size = dtype.itemsize * math.prod(shape)
    return memory[offset : offset + size].view(dtype).reshape(shape)
