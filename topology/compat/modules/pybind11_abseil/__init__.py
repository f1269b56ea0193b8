"""`pybind11_abseil`: the statuses that the original courier raises."""
