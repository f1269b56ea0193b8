"""`pybind11_abseil.status`: what it has is in `topology.compat.status`; see `topology.compat.status_module`."""
