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
"""
