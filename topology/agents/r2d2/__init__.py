"""R2D2: recurrent, with replayed sequences that begin at stored states, and an actor for each epsilon of a ladder.

`program.py` has the graph. The parts are in config, networks, losses, actor and learner.
"""
