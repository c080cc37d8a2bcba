"""The write-ahead log in the bucket (ADR 0037): one numbered sequence of objects for each broker epoch.

Every module decides without I/O, except ``objects``, ``owner`` and ``taker``, which are thin shells.
``app/broker/write_ahead/write_ahead.py`` owns the write-ahead log of a broker.

- ``format``: the bytes of an object; ``states``: producer state and leader epochs in it
- ``writer``: ``WalWriter``, cuts appended batches into objects and acknowledges them in order; ``owner``: its shell
- ``sealing``: ``Sealing``, ends the log of another broker; ``taker``: its shell
- ``takeover``: where a partition goes on after an end
- ``trimming``: which objects may be deleted
- ``objects``: calls to the store, each with a deadline
"""
