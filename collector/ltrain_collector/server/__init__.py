"""`ltrain up`: one process that owns a store's folder, with a listener for each protocol."""

from ltrain_collector.server.serve import Ports, serve

__all__ = ["Ports", "serve"]
