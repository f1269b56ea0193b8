"""Deploys programs: as threads, as processes, on clusters.

This package knows the kernel (`topology.*`) only: never a node kind, never an agent.
"""
