"""`pybind11_abseil`: the statuses that the original courier raises."""

import sys as _sys

from topology.compat.status_module import take_place as _take_place

_take_place()
status = _sys.modules[f"{__name__}.status"]
