"""Uploads, expiry and deletion of the segments of led partitions.

- ``remote_log_manager``: ``RemoteLogManager``, which carries out the steps of each led partition
- ``steps`` (pure): which step is next, by the state of a partition and the time
- ``led_partition``: its state of one partition; ``tier_status``: status for people
- ``tiered_log``: the part of a local log that the tier needs
- ``segment_copy``: ``SegmentCopier``, the steps of an upload
- ``retention`` (pure), ``expiry``, ``local_retention``: which segments expire; ``deadlines``: time limits of this work
- ``copy_holds``: holds uploads during a change of the cluster
- ``recopying``, ``replacement``: replace remote segments after a compaction, or for a Spark job
- ``sweeper``: deletes orphans; ``deletion``: the only code that deletes segment objects
"""
