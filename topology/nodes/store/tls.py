"""What is wrong with an encrypted connection, and does not mend itself however long one waits."""

from __future__ import annotations

import os
import ssl
from typing import Final
from urllib.parse import parse_qsl, urlsplit

__all__ = ["check_tls_files", "lasting_tls_error"]

_FILES: Final = ("ssl_ca_certs", "ssl_certfile", "ssl_keyfile")

# The other side went away, as it may with every connection.
_PASSING: Final = (
    ssl.SSLEOFError,
    ssl.SSLZeroReturnError,
    ssl.SSLSyscallError,
    ssl.SSLWantReadError,
    ssl.SSLWantWriteError,
)


def lasting_tls_error(error: BaseException) -> ssl.SSLError | None:
    """The error of TLS behind `error`, when it is one that waiting does not mend: a certificate, another protocol."""
    seen: set[int] = set()
    found: BaseException | None = error
    while found is not None and id(found) not in seen:
        if isinstance(found, ssl.SSLError) and not isinstance(found, _PASSING):
            return found
        seen.add(id(found))
        found = found.__cause__ or found.__context__
    return None


def check_tls_files(url: str) -> None:
    """Looks for the files of certificates and keys that a Redis URL names.

    Raises:
        ValueError: one is not there, or may not be read.
    """
    for name, path in parse_qsl(urlsplit(url).query):
        if name in _FILES and not (os.path.isfile(path) and os.access(path, os.R_OK)):
            raise ValueError(f"{name}={path} in the URL of a Redis server is no file that can be read on this machine")
