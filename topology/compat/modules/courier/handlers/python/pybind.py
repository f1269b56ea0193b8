"""`courier.handlers.python.pybind`: handlers for `Server.BindHandler`, which are functions here."""

from topology.compat.batching import build_batched_handler, build_handler, call_handler

__all__ = ["BuildBatchedHandlerWrapper", "BuildPyCallHandler", "CallHandler"]

BuildBatchedHandlerWrapper = build_batched_handler
BuildPyCallHandler = build_handler
CallHandler = call_handler
