"""Agents, in JAX. `core` holds what they share, every other folder is one agent.

An agent's `program.py` makes its graph; the rest of the folder is parts that also work alone, in one process. May
import environments, nodes and the kernel; never a launcher.
"""
