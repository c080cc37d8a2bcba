"""The tier: segments go to the object store, and old records are read back.

Folders:

- ``store/``: the store process, its work, and the bytes of segment objects
- ``upload/``: uploads, expiry and deletion; ``read/``: reads of tiered records
- ``repair/``: rebuilds and checks at a start and for ``firn doctor``

An upload has steps, and each is durable before the next one begins: fdatasync of the segment, COPY_STARTED, upload, conditional
completion, COPY_FINISHED. A finish shares its manifest entry with the next start, so a segment costs one metadata PUT. The age
of a segment counts from its greatest timestamp or the arrival of its newest record, whichever is later (ADR 0014).

The sweeper LISTs objects first and reads the manifest afterwards. It keeps objects that are older than the manifest, because
they belong to a manifest that was lost. ``deletion`` refuses keys that do not belong to the given partition or topic.

A read-ahead window doubles whenever its reader had to wait. When all windows together reach ``firn.read.ahead.bytes``, readers
get equal shares. A new chunk overwrites the file of an evicted chunk. A chunk that a directory store holds verbatim is served
from the object's own file, after its CRC was verified.
"""
