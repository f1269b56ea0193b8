"""`courier.python`: client and server."""
