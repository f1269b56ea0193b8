"""DMPO: continuous control by maximum a posteriori policy optimisation with a distributional critic.

`program.py` has the graph. The parts are in config, networks, losses, learner and actor.
"""
