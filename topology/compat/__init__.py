"""Programs written for Launchpad, Courier and Reverb, on top of this project.

    python -m topology.compat script.py --its-own-flags      # or: -m package.module
    TOPOLOGY_COMPAT=1 python script.py

    import topology.compat
    topology.compat.install()                                # before the first import of launchpad, courier or reverb

Each gives the modules `launchpad`, `courier`, `reverb` and `pybind11_abseil`, with the deep paths that programs import,
in this interpreter and in those that it starts. A package of that name that is really installed is used instead, unless
`install(shadow=True)` says otherwise.

May live here: other projects' names, made of ours. The files under `modules` are loaded under the names of the folders
they lie in. May import everything; nothing imports this package.
"""

from topology.compat.finder import PROVIDED, install, is_installed, provided, uninstall

__all__ = ["PROVIDED", "install", "is_installed", "provided", "uninstall"]
