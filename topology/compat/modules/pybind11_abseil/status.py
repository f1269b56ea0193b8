"""`pybind11_abseil.status`."""

from topology.compat.status import Status, StatusCode, StatusNotOk

__all__ = ["Status", "StatusCode", "StatusNotOk"]
