"""Reads of tiered records.

- ``reader``: ``RemoteReader``, reads for Fetch; ``lookups``: offsets by timestamp, ends of leader epochs
- ``read_ahead``: sequential readers and their windows
- ``footers``: footers in memory, and missing objects; ``chunk_reads``: ranges of whole batches in a cached chunk
- ``chunk_cache``: ``ChunkCache``; ``waiting``: waits for data, and the tasks that fetch it
"""
