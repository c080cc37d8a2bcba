"""Committed offsets, their expiry and their deletion. Pure.

- ``offsets``: ``OffsetStore``; ``cleanup``: finds unused offsets and those of deleted topics
- ``deletion``: deletes many offsets in several turns; ``sweeps``: records that delete many offsets at once
"""
