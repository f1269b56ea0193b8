"""Memory backends and data stores of a run, by what its settings say."""

from __future__ import annotations

import contextlib
import os
import re
import secrets
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

from topology.agents.core.metrics import metrics_path
from topology.agents.scaleout.config import ScaleOutSettings
from topology.context import NodeContext
from topology.errors import ProgramError, StoreError
from topology.nodes import replay
from topology.nodes.store.memory import MemoryBackend, open_memory_backend
from topology.nodes.store.policies import DataStore, open_data_store

__all__ = ["REPLAY_NAME", "has_trained", "open_memory", "open_policies", "run_name"]

REPLAY_NAME = "experience"
"""Of the memory in a replay service of the program's own."""

_NAME = "store-name"
_REDIS_URL = "redis://localhost:6379"


def run_name(context: NodeContext) -> str:
    """Names the run among all that share a server; the same on every machine, and when the run is gone on with.

    It lies in the run directory, made by whichever node asks first: neither the machine nor where the directory is
    mounted on it counts.
    """
    directory = _run_directory(context, "a name of its own in the memory backend")
    file = directory / _NAME
    with contextlib.suppress(FileNotFoundError):
        return file.read_text().strip()
    directory.mkdir(parents=True, exist_ok=True)
    aside = file.with_name(f".{_NAME}.{secrets.token_hex(4)}")
    readable = re.sub(r"[^\w.-]", "-", directory.absolute().name)  # Redis takes no braces and spaces
    aside.write_text(f"{readable}-{secrets.token_hex(6)}\n")
    try:
        os.link(aside, file)  # whole, and only once
    except FileExistsError:
        pass
    finally:
        aside.unlink()
    return file.read_text().strip()


def has_trained(context: NodeContext) -> bool:
    """Whether the trainer of this run, in an earlier life of it or of the run, has measured anything."""
    path = metrics_path(context)
    return path is not None and path.exists()


def open_memory(
    config: ScaleOutSettings, context: NodeContext, memory: MemoryBackend | replay.Client | None
) -> MemoryBackend:
    """The memory backend of the run.

    Args:
        config: settings.
        context: of the node.
        memory: client of the program's own node for it, where it has one.

    Raises:
        ProgramError: a backend that cannot reach from process to process, or for which a package is missing; a URL or
            bounds that cannot be.
        StoreUnavailable: its server is not there.
    """
    if isinstance(memory, replay.Client):
        url = f"replay:{memory.server_address}"
        memory.close()
        return open_memory_backend(
            url, name=REPLAY_NAME, max_steps=config.memory_max_steps, patience_s=config.server_patience_s
        )
    if memory is not None:
        return memory
    url = _url(config.memory_backend)
    if url.startswith("local:") and not context.launch_type.endswith("_mt"):
        raise ProgramError(
            f"memory_backend={url} holds experience in one process, and the nodes of this program have one each: "
            "choose local (without the colon: a node of the program), or redis"
        )
    with _wrong_for_good("memory_backend"):
        return open_memory_backend(
            url, name=run_name(context), max_steps=config.memory_max_steps, patience_s=config.server_patience_s
        )


def open_policies(config: ScaleOutSettings, context: NodeContext) -> DataStore:
    """The data store of the run. In a Redis server that others use, too, it has the run's name, or that in its URL.

    Raises:
        ProgramError: a URL that cannot be, or for which a package is missing.
        StoreUnavailable, StoreError: it is not there, or does not let us in.
    """
    if config.data_store is None:
        url = str(_run_directory(context, "a place for its policies") / "policies")
    else:
        url = _url(config.data_store)
    parts = urlsplit(url)
    shared = parts.scheme in ("redis", "rediss", "unix") and "name" not in parse_qs(parts.query)
    options = {"name": run_name(context)} if shared else {}
    with _wrong_for_good("data_store"):
        return open_data_store(url, keep=config.keep_policies, patience_s=config.server_patience_s, **options)


@contextlib.contextmanager
def _wrong_for_good(setting: str) -> Iterator[None]:
    """To start the node again would not help."""
    try:
        yield
    except StoreError:
        raise
    except (ValueError, ImportError) as error:
        raise ProgramError(f"{setting}: {error}") from error


def _url(text: str) -> str:
    return os.environ.get("REDIS_URL", _REDIS_URL) if text == "redis" else text


def _run_directory(context: NodeContext, what: str) -> Path:
    if context.run_directory is None:
        raise ProgramError(f"{context.name}: this run keeps no run directory, and so has not {what}")
    return Path(context.run_directory)
