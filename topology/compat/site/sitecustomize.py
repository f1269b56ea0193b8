"""Run by every interpreter that is started while the modules are provided: this folder is first in PYTHONPATH then.

Installs them there too, takes itself off `sys.path`, and runs the `sitecustomize` that would have been run without it.
"""

import os
import sys
from importlib.machinery import PathFinder
from importlib.util import module_from_spec

_here = os.path.dirname(os.path.abspath(__file__))
sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry or os.curdir) != _here]

_spec = PathFinder.find_spec("sitecustomize", sys.path)
if _spec is not None and _spec.loader is not None:
    _module = module_from_spec(_spec)
    sys.modules["sitecustomize"] = _module
    _spec.loader.exec_module(_module)

if os.environ.get("TOPOLOGY_COMPAT", "") not in {"", "0"}:
    from topology.compat.finder import install_if_asked

    install_if_asked()
