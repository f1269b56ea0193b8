"""Where experience waits for the trainer, and policies for the workers: memory backends and data stores.

May live here: the two interfaces, the bytes they share (`codec`), and one module for each technology behind them: this
process, the replay service, Redis, directories and object stores. `node.py` alone knows the graph; everything else is
a library that works without one. What comes out of a server is arrays and plain data, and is never unpickled.
May not: execution plans, agents, what experience or a policy means, jax. A package that only one technology needs
(redis, fsspec) is imported when that one is opened.
"""
