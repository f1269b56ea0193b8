"""A learner on several devices of its process: each takes a part of every batch, all hold the same state.

The update of an agent is not changed. Its inputs are placed, and the compiler does the rest: it runs the network on
each device's rows and adds up the gradients. So the result is that of one device, but for the order of the sums.

Which rows of a call make an update matters here. Rows lie on the devices in blocks; if the first `B` rows were the
first update, one device would hold all of it, and the compiler would gather the whole batch on every device first.
`split_updates` therefore deals rows out in turn, so that each device holds its part of every update.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from topology.errors import ProgramError

__all__ = ["data_parallel", "join_updates", "learner_mesh", "replicate", "split_updates"]

_BATCH = "batch"


def split_updates(batch: Any, num_updates: int) -> Any:
    """The batches of `num_updates` updates: a tree of `[K * B, ...]` as one of `[K, B, ...]`.

    Update k gets the rows k, k + K, k + 2K ... `join_updates` is the inverse.
    """

    def split(leaf: jax.Array) -> jax.Array:
        return jnp.reshape(leaf, (-1, num_updates, *leaf.shape[1:])).swapaxes(0, 1)

    return jax.tree.map(split, batch)


def join_updates(values: Any) -> Any:
    """What updates tell of their items, a tree of `[K, B, ...]`, in the order of the batch: `[K * B, ...]`."""

    def join(leaf: jax.Array) -> jax.Array:
        return leaf.swapaxes(0, 1).reshape(-1, *leaf.shape[2:])

    return jax.tree.map(join, values)


def learner_mesh(num_devices: int) -> Mesh:
    """The first `num_devices` devices of this process.

    Raises:
        ProgramError: there are fewer.
    """
    devices = jax.local_devices()
    if num_devices > len(devices):
        raise ProgramError(
            f"learner_devices={num_devices}, but the learner's process sees {len(devices)} ({devices[0].platform}). "
            f"Set learner_devices to {len(devices)} or less, or let the process see more: CUDA_VISIBLE_DEVICES says "
            "which GPUs it may use, and XLA_FLAGS=--xla_force_host_platform_device_count=N makes N devices of the CPU."
        )
    return Mesh(np.array(devices[:num_devices]), (_BATCH,))


def replicate(tree: Any, mesh: Mesh) -> Any:
    """A copy of `tree` on every device of `mesh`."""
    return jax.device_put(tree, _placed(mesh))


def _placed(mesh: Mesh, *axes: str) -> NamedSharding:
    """Leading axes of arrays spread over these axes of `mesh`; the same on all devices where there are none."""
    return NamedSharding(mesh, PartitionSpec(*axes))  # type: ignore[no-untyped-call]


@functools.lru_cache(maxsize=8)  # learners of equal settings in one process compile once
def data_parallel(update: Callable[..., Any], mesh: Mesh) -> Callable[..., Any]:
    """An update of a learner (see `Learner`) that works on all devices of `mesh`.

    Args:
        update: pure function of a state and trees of arrays `[K * B, ...]`. To be spread it must make its batches with
            `split_updates`, or make one update a call; otherwise it is right, but every device does all the work.
        mesh: see `learner_mesh`; its size divides `B`.

    Returns:
        A compiled function of the same arguments, on the host or on any device. The state it takes and all that it
        gives are the same on every device.
    """
    same, rows = _placed(mesh), _placed(mesh, _BATCH)
    return jax.jit(update, in_shardings=(same, rows, rows), out_shardings=same)
