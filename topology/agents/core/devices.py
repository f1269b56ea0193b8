"""Where JAX computes in a node, and with how many threads."""

from __future__ import annotations

import os

from topology.context import NodeContext

__all__ = ["prepare_jax"]

_ONE_THREAD = "--xla_cpu_multi_thread_eigen=false"
_MORE_DEVICES = "xla_force_host_platform_device_count"


def prepare_jax(
    context: NodeContext | None,
    *,
    accelerator: bool = False,
    memory_fraction: float | None = None,
    all_threads: bool = False,
) -> None:
    """Call it in a node before the first use of JAX. Does nothing where JAX runs already.

    Small networks gain nothing from XLA's threads, and with several nodes on one machine the threads fight for the
    processors: one thread a node. A node in a process of its own keeps off the accelerator unless told otherwise, so
    that the learner has it alone; nodes that share a process share their devices.

    Args:
        context: of the node.
        accelerator: whether this node computes on the accelerator, if there is one.
        memory_fraction: part of the accelerator's memory that this process takes at once; None for JAX's default.
        all_threads: whether XLA takes as many threads as there are processors: for those who learn from images, which
            takes half as long with two.
    """
    flags = os.environ.get("XLA_FLAGS", "")
    if "xla_cpu_multi_thread_eigen" not in flags and not all_threads:
        os.environ["XLA_FLAGS"] = f"{flags} {_ONE_THREAD}".strip()
    if context is not None and context.launch_type.endswith("_mt"):
        return
    if context is not None and _MORE_DEVICES not in flags and not all_threads:
        # XLA runs independent parts of a computation in threads of its own, too: on two cores an update of a network of
        # 256-256 took no longer with one, and a third less of the processor. Devices that must meet need one each.
        os.environ.setdefault("PJRT_NPROC", "1")
    if context is not None and not accelerator:
        import jax

        jax.config.update("jax_platforms", "cpu")  # type: ignore[no-untyped-call]
    elif memory_fraction is not None:
        # JAX reads it when it first looks for devices, and refuses to find both names.
        os.environ.pop("XLA_PYTHON_CLIENT_MEM_FRACTION", None)
        os.environ["XLA_CLIENT_MEM_FRACTION"] = str(memory_fraction)
