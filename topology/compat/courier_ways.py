"""What our courier does otherwise while the modules are provided."""

from __future__ import annotations

from topology.compat.status import translate_errors
from topology.nodes.courier.codec import send_jax_as_numpy
from topology.nodes.courier.methods import expose_properties

__all__ = ["take_their_ways"]


def take_their_ways(wanted: bool = True) -> None:
    """From now on failures are statuses, properties may be methods, and arrays of JAX travel as numpy's.

    With `wanted` false it is itself again.
    """
    translate_errors(wanted)
    expose_properties(wanted)
    send_jax_as_numpy(wanted)
