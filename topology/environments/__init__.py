"""Environments. Everything in here speaks `dm_env`; adapters bring other interfaces to it.

May live here: adapters, small built-in environments, specs. May not: anything that knows an agent, a node or a
launcher. Imports the kernel only; Gymnasium is imported when an environment of it is asked for.
"""

from topology.environments.catch import Catch
from topology.environments.factory import EnvironmentFactory, make_environment
from topology.environments.memory_chain import MemoryChain
from topology.environments.specs import EnvironmentSpec, make_environment_spec

__all__ = [
    "Catch",
    "EnvironmentFactory",
    "EnvironmentSpec",
    "MemoryChain",
    "make_environment",
    "make_environment_spec",
]
