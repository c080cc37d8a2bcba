"""The log of a partition on the local disk.

All state of a log changes synchronously on the event loop. A sync is planned on the loop, executed on a pool thread, and its
result is applied on the loop. Files and indexes have Kafka's formats.

- ``log``: ``PartitionLog``, the public face: settings, leadership, reads
- ``manager``: ``LogManager``, all logs of a data directory; ``directory``: the parts that these logs share

The parts of a log:

- ``segments``, ``segment_list``, ``segment_writer``: a segment, the list of segments, the active segment
- ``segment_holds``: uploads and compactions that hold segments; ``swapping``: replaces segments after a compaction
- ``indexes``, ``epochs``, ``producers``, ``snapshots``: offsets, leader epochs, producer state
- ``durability``, ``syncing``: how much of a log is synced; ``journal``: the seam to a write-ahead log
- ``offset_queue``: waits until such an end has passed an offset
- ``log_offsets``: the offsets and parts of a log, and the callbacks that wait for it; ``acceptance``: which work it accepts
- ``appending``: appends; ``truncating``: the removal of records at both ends
- ``reader``, ``reads``: lookups that do not wait for the disk; ``unreadable``: batches that cannot be decoded
- ``preparation``: work on a batch before its append

Start, stop and files:

- ``recovery``: opens a log; ``missing``: segment files that it lacks; ``state_file``: state of all logs after a clean stop
- ``checkpoints``, ``high_watermarks``: small files
- ``descriptors``: open files; ``freeing``: frees the bytes of deleted files

``cleaning/`` compacts logs.

An append has no await between check and write, so it needs no lock. The first append of a log makes its directory and files;
the next sync makes their names durable. A log without appends for ten minutes is synced, and its unused files are closed.
"""
