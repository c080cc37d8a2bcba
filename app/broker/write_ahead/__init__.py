"""Object durability (ADR 0037): the write-ahead log of this broker. Its pure core is ``app/wal/``.

- ``write_ahead``: ``WriteAhead``
- ``restore``, ``release``, ``sweep``: take-over, release and deletion
- ``switching``: the leader's part of a change of durability
"""
