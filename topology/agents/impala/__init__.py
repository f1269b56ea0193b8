"""IMPALA: actors fill a queue of sequences; V-trace corrects for the weights they acted with.

`program.py` has the graph. The parts are in config, replay, networks, losses, actor, learner and builder.
"""
