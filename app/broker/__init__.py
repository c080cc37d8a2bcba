"""The composition root: the only place that builds clocks, sockets, stores and processes."""

from app.broker.process import Broker, serve

__all__ = ["Broker", "serve"]
