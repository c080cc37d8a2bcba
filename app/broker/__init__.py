"""The composition root: the only place that builds clocks, sockets, stores and processes.

Nothing is imported here: ``process`` starts the store process before it imports what a node needs, and the commands that only
want a clock get no broker with it.
"""
