"""Reads of tiered records.

- ``remote_reader``: ``RemoteReader``; ``chunk_cache``: ``ChunkCache``; ``waiting``: callbacks for data that arrives
"""
