"""MADQN: deep Q-learning for several agents: each by itself, or together by a mixed value (VDN, QMIX).

`program.py` has the graph; `topology.agents.core.local` runs the same parts in one process. `team.py` says which agents
share a network; the parts are in config, networks, losses, learner and actor.
"""
