"""Between a sample request and its reply: copying the bytes, in the right thread."""

from __future__ import annotations

import functools
import threading
from collections.abc import Sequence
from concurrent.futures import Future
from typing import final

import numpy as np

from topology.errors import ReplayError
from topology.nodes.replay.copiers import Copiers
from topology.nodes.replay.gather import gather
from topology.nodes.replay.lent_memory import Placer
from topology.nodes.replay.messages import SampleBatch, ServerStopped
from topology.nodes.replay.requests import Picks
from topology.nodes.replay.table import Table

__all__ = ["SampleCall"]

_SMALL_BYTES = 128 << 10  # handing over costs as much as copying
_MODEST_BYTES = 16 << 20  # a few milliseconds


@final
class SampleCall:
    """One `sample` call of a service.

    Small batches that are there at once are copied by the calling thread, which may be the one that reads all requests
    of a server, and so are modest ones while `copiers` have enough to do. Larger ones, and those that had to wait, are
    copied by `copiers`: never by a writer whose insert happened to let the samples pass.
    """

    def __init__(
        self, table: Table, copiers: Copiers, placer: Placer | None = None, priority: float | None = None
    ) -> None:
        self.reply: Future[SampleBatch] = Future()
        self._table = table
        self._copiers = copiers
        self._placer = placer
        self._priority = priority
        self._caller: int | None = threading.get_ident()
        self._picks: Sequence[Picks] | None = None

    def drawn(self, picks: Sequence[Picks], error: Exception | None) -> None:
        """The request has ended. Called by whichever thread let it pass."""
        if self._priority is not None:
            for each in picks:
                self._table.update_priorities(each.keys, np.full(each.size, self._priority))
        if error is not None:
            if self.reply.set_running_or_notify_cancel():
                self.reply.set_exception(error)
        elif threading.get_ident() == self._caller:
            self._picks = picks  # the calling thread is still in `Table.sample`
        else:
            self._hand_over(picks)

    def submitted(self) -> None:
        """The calling thread is back from `Table.sample`; from now on it is a thread like any other."""
        self._caller = None
        picks, self._picks = self._picks, None
        if picks is None:
            return
        if sum(each.nbytes for each in picks) <= (_MODEST_BYTES if self._copiers.busy else _SMALL_BYTES):
            self._copy(picks)
        else:
            self._hand_over(picks)

    def _hand_over(self, picks: Sequence[Picks]) -> None:
        try:
            self._copiers.submit(functools.partial(self._copy, picks))
        except RuntimeError:  # the service was closed in this very moment
            self.drawn((), ServerStopped("the replay server was stopped"))
            _release(picks)

    def _copy(self, picks: Sequence[Picks]) -> None:
        if not self.reply.set_running_or_notify_cancel():
            self._table.give_back(picks)
            return
        try:
            batch = gather(picks) if self._placer is None else self._placer.replace(gather(picks, self._placer.empty))
        except MemoryError as error:
            count, size = sum(each.size for each in picks), sum(each.nbytes for each in picks)
            text = f"no memory for a batch of {count} items, {size} bytes: ask for fewer at a time ({error})"
            self.reply.set_exception(ReplayError(text))
            self._table.give_back(picks)  # others may ask for fewer, too
            return
        except BaseException as error:  # noqa: BLE001  (whatever it is belongs to the caller)
            self.reply.set_exception(error)
        else:
            self.reply.set_result(batch)
        _release(picks)


def _release(picks: Sequence[Picks]) -> None:
    for each in picks:
        each.release()
