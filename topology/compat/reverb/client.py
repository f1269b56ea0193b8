"""Reverb's client: ours, with Reverb's texts and signatures."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

from topology.compat.reverb.signatures import shown_info
from topology.compat.reverb.writers import StructuredWriter, TrajectoryWriter
from topology.errors import ReplayDeadlineExceeded, ReplayError, TableNotFound
from topology.nodes.replay import Client as OurClient
from topology.nodes.replay import ReplaySample, TableInfo
from topology.nodes.replay.links import SampleCallArguments, result_of, wait_for
from topology.nodes.replay.messages import SampleBatch
from topology.nodes.replay.structure import flatten, unflatten
from topology.nodes.replay.text import as_array

__all__ = ["Client"]


class Client(OurClient):
    """Talks to a replay server. Thread-safe; pickles as the server's address.

    Args:
        server_address: "host:port", or "unix:/path".
        options: of our client.
    """

    trajectory_writer_kind: ClassVar[Any] = TrajectoryWriter
    structured_writer_kind: ClassVar[Any] = StructuredWriter

    def __init__(self, server_address: str, **options: Any) -> None:
        super().__init__(server_address, **options)
        self._server_address = server_address  # the name of the original

    def __repr__(self) -> str:
        return f"Client, server_address={self.server_address}"

    def server_info(self, timeout: float | None = None) -> dict[str, TableInfo]:
        """See our client; 0 waits for ever, as there."""
        try:
            infos = super().server_info(timeout or None)
        except ReplayDeadlineExceeded as error:
            text = f"ServerInfo call did not complete within provided timeout of {timeout}s"
            raise ReplayDeadlineExceeded(f"{text}: {error}") from error
        return {name: shown_info(info) for name, info in infos.items()}

    def trajectory_writer(
        self, num_keep_alive_refs: int, get_signature_timeout_ms: int | None = None, validate_items: bool = True
    ) -> Any:
        """See our client. `get_signature_timeout_ms` is accepted: signatures are asked for when they are needed."""
        del get_signature_timeout_ms
        return super().trajectory_writer(num_keep_alive_refs, validate_items=validate_items)

    def sample(
        self,
        table: str,
        num_samples: int = 1,
        *,
        emit_timesteps: bool = True,
        unpack_as_table_signature: bool = False,
    ) -> Iterator[Any]:
        """See our client.

        Raises:
            ValueError: `emit_timesteps` for an item that is not a sequence of steps; or `unpack_as_table_signature` for
                a table that is not there.
        """
        if unpack_as_table_signature:
            self._look_up(table)
        samples = super().sample(
            table, num_samples, emit_timesteps=emit_timesteps, unpack_as_table_signature=unpack_as_table_signature
        )
        while (sample := _next(samples)) is not None:
            yield list(map(_with_arrays, sample)) if emit_timesteps else _with_arrays(sample)

    def _one_by_one(self, request: SampleCallArguments, count: int) -> Iterator[SampleBatch]:
        """As there, the next is under way while the program works on one."""
        ahead = self._link.begin_sample(request) if count else None
        try:
            while ahead is not None:
                batch, ahead, count = ahead, None, count - 1
                if count:
                    wait_for(batch)
                    ahead = self._link.begin_sample(request)  # before that one is unpickled
                yield result_of(batch)
        finally:
            if ahead is not None:
                ahead.cancel()

    def _look_up(self, table: str) -> None:
        try:
            self.signature(table)
        except TableNotFound as error:
            found = ", ".join(self._signatures)
            raise TableNotFound(f'Could not find table "{table}". The following tables exists: {found}.') from error

    def structured_writer(self, configs: Any) -> Any:
        if not configs:
            raise ValueError("At least one config must be provided.")
        return super().structured_writer(configs)


def _next(samples: Iterator[Any]) -> Any:
    """The next of the samples; None at the end."""
    try:
        return next(samples, None)
    except ReplayError:
        raise
    except ValueError as error:
        raise ValueError(f"Can't split non timestep trajectory into timesteps. {error}") from None


def _with_arrays(sample: ReplaySample) -> ReplaySample:
    """The sample with arrays without axes in the place of numbers and text."""
    leaves, shape = flatten(sample.data)
    return ReplaySample(sample.info, unflatten(shape, list(map(as_array, leaves))))
