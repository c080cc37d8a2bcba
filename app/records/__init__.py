"""Kafka's record format, v2, pure: bytes in, bytes out.

- ``batch``: ``BatchHeader``, parse, check and patch per batch; ``record``: records inside a batch
- ``builder``: batches from records; ``control``: transaction markers
- ``compression``, ``framing``: the codecs, and framings that clients can read; ``validation``: checks of every record
- ``varint``: zig-zag varints
"""
