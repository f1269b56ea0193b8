"""Files that are there whole or not at all, whenever their writer is killed and however full the disk is."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from topology.errors import LaunchError

__all__ = ["written_aside"]


@contextlib.contextmanager
def written_aside(path: Path, temporary: str, *, what: str, where: Path) -> Iterator[Path]:
    """Gives a file to write beside `path`, in a directory that is made if need be; puts it in its place at the end.

    Args:
        path: what is replaced. A reader sees the old or the new content.
        temporary: name to write under: always the same, so that what a killed node has left is written over.
        what: cannot be saved, at the beginning of the error's text.
        where: it cannot be saved, as the error tells it.

    Raises:
        LaunchError: it cannot be written, e.g. on a full disk; the old content stays.
    """
    aside = path.with_name(temporary)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield aside
        aside.replace(path)
    except OSError as error:
        with contextlib.suppress(OSError):
            aside.unlink()
        raise LaunchError(
            f"{what} cannot be saved in {where}: {error.strerror or error}. Make room there, or give the run another "
            "directory."
        ) from error
