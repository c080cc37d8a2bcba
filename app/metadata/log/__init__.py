"""The numbered log: the primitive under every durable decision. Its entries are objects in the bucket that are put if absent.

- ``numbered_log``: ``NumberedLog``, the shell; ``append_attempt``: one append as a pure state machine
- ``log_format``: bytes of entries and snapshots; ``log_proofs``: proofs of who wrote them (ADR 0036)
- ``layout``: every object key of a cluster
"""
