"""Responses to clients: the fast paths of Produce and Fetch, and one module for each family of APIs.

``serving/session.py`` takes whole frames from a connection. It serves Produce and Fetch itself, and finds the handler of every
other API in the tables of ``serving/dispatch.py``.

Folders:

- ``serving/``: listeners, sessions, and the tables of all APIs
- ``produce/``, ``fetch/``: the fast paths; ``clients/``: a connection as both see it
- ``apis/``: one module for each family of APIs; none imports another one
- ``base/``: helpers of all handlers, and their context
- ``state/``: state that requests share; ``policy/``: callers, quotas, the audit log

How a Produce goes: a request of the usual form is read by two structs. ``ProduceShape`` remembers its constant bytes, so that
the next request of that shape costs one comparison. A shape belongs to the ``Rights`` of its caller: other principals, and the
same principal under new rules, do not find it. Requests that came together are appended together: those of one client, and
those of all clients of one turn of the loop if several clients send. Until then they count as not arrived. If the shared write
fails, nothing was appended, and each request is served by itself. A first batch, a roll or a retry takes the general way at its
place. A request of one client never waits for others. Batches that must be decompressed, checked or recompressed queue for
memory (``firn.preparation.bytes.max``).

How a Fetch goes: consumers and followers are two kinds, told apart once. A consumer's request without a session that differs
from the connection's previous one only in the offset is not decoded again. If many consumers ask for the same offset, only the
first two requests look up the range. A parked request costs no task. It is woken by an append, a chunk, its timer, or a change of
access rules.
"""
