"""Reverb's datasets and client for TensorFlow. Importing its modules imports TensorFlow, which must be installed.

Batches cross from the server once, as contiguous arrays, and enter TensorFlow as whole tensors; where a program wants
single items, TensorFlow takes the batches apart. Waiting is done in short visits to Python, between which TensorFlow
can cancel: a reader that is blocked never keeps an iterator, a session or the process from ending.
"""
