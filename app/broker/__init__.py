"""The composition root: the only place that builds clocks, sockets, stores and processes."""
