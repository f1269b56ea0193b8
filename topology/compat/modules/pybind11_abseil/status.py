"""`pybind11_abseil.status`."""

from topology.compat.status import StatusCode, StatusNotOk

__all__ = ["StatusCode", "StatusNotOk"]
