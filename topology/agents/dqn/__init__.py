"""DQN: double, n-step, prioritized, with an actor for each epsilon of a ladder.

`program.py` has the graph, `local.py` runs the same parts in one process. The parts are in config, networks, losses,
actor and learner.
"""
