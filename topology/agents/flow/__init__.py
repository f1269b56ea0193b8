"""PPO, A2C, IMPALA and DQN as execution plans: policies in JAX, samplers, and the programs that run them.

The plans are in `plans.py`, what a policy of each learns in `actor_critic.py` and `q_learning.py`; `program.py` has the
graphs. The operators are those of `topology.nodes.flow`.
"""
