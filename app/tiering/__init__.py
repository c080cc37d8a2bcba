"""The tier: segments go to the object store, and old records are read back.

- ``remote_log_manager``: ``RemoteLogManager``, uploads and deletions of each led partition
- ``led_partition``: its state of one partition
- ``tiered_log``: the part of a local log that the tier needs

Upload and deletion:

- ``segment_copy``: ``SegmentCopier``, the steps of an upload
- ``retention``, ``local_retention``: which segments expire; ``deadlines``: time limits of this work
- ``copy_holds``: holds uploads during a change of the cluster
- ``recopying``, ``replacement``: replace remote segments after a compaction, or for a Spark job
- ``sweeper``: deletes orphans; ``deletion``: the only code that deletes segment objects

Reads:

- ``remote_reader``: ``RemoteReader``; ``chunk_cache``: ``ChunkCache``; ``waiting``: callbacks for data that arrives

The store process:

- ``segment_format``: the segment object, ``.seg``
- ``store_work``: ``StoreWork``, uploads and chunk reads; ``store_process``: the process; ``store_proxy``: calls to it

Start, repair and status:

- ``rebuild``: compares a log with its manifest; ``refilling``: refills a log from the store
- ``unnamed``, ``soundness``: damage of a manifest; ``discovery``, ``verify``: facts from the bucket alone
- ``tier_status``: status for people

An upload has steps, and each is durable before the next one begins: fdatasync of the segment, COPY_STARTED, upload, conditional
completion, COPY_FINISHED. A finish shares its manifest entry with the next start, so a segment costs one metadata PUT. The age
of a segment counts from its greatest timestamp or the arrival of its newest record, whichever is later (ADR 0014).

The sweeper LISTs objects first and reads the manifest afterwards. It keeps objects that are older than the manifest, because
they belong to a manifest that was lost. ``deletion`` refuses keys that do not belong to the given partition or topic.

A read-ahead window doubles whenever its reader had to wait. When all windows together reach ``firn.read.ahead.bytes``, readers
get equal shares. A new chunk overwrites the file of an evicted chunk. A chunk that a directory store holds verbatim is served
from the object's own file, after its CRC was verified.
"""
