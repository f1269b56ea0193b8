"""`courier.handlers.python`."""
