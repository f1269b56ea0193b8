"""Node kinds and their services, one slice per service.

May live here: what a node runs, the service behind it, its client. Only a slice's `node.py` (and `python.py`,
`colocation.py`) knows the graph; everything else in a slice is a plain library that works without one.
May not: launch types, agent algorithms, jax.
"""
