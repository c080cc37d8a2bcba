"""Connections of clients: bytes in, whole frames to whoever serves them, responses out in order.

Nothing here knows what a request says. ``Server`` owns the connections and what they share; a ``Connection`` is
the socket's side of one client, and a subclass of ``ConnectionCore`` serves the frames (``app/handlers/session.py``).
"""
