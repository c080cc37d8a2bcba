"""Connections: bytes in, whole frames to a session, responses out in order.

No module here knows the meaning of a request. A ``Connection`` is the socket's side of one client. A subclass of ``ConnectionCore``
serves the frames (``app/handlers/serving/session.py``).

- ``server``: ``Server``, all connections and their limits; ``listener``: a listening socket
- ``connection``: ``Connection``, the shell; ``core``: ``ConnectionCore``, pure
- ``sending``, ``outlet``, ``buffers``: responses, file ranges, pooled memory
- ``answers``: responses that become ready together; ``replays``: the share of the loop for reads of tiered data
- ``frame_memory``: memory of requests that still arrive; ``admission``, ``arrivals``: limits of connections
- ``tls``: TLS; ``metrics``: counters
"""
