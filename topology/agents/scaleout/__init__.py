"""Agents scaled out: one trainer, rollout workers, a memory backend for experience, a data store for policies.

May live here: settings, what plays and what learns (JAX), the two ways of keeping trainer and workers in step (SYNC and
ASYNC), the evaluator beside them, the program. May not: what bytes experience and policies are, and where they are kept
(`topology.nodes.store`).
"""
