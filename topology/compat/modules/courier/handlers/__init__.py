"""`courier.handlers`."""
