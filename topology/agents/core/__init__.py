"""What agents share: counters, step limits, weights on their way to actors, loops, evaluation, metrics, checkpoints.

Nothing here knows an agent. Modules without JAX say so by not importing it: counters and limiters run in processes
that never load it.
"""
