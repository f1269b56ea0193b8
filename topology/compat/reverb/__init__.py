"""Reverb's classes, made of ours: what the modules named `reverb` are filled with.

Each is one of ours with Reverb's parameters, in Reverb's order, and Reverb's texts where programs look at them. What
needs TensorFlow is in `topology.compat.tensorflow`.
"""
