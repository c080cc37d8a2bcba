"""The partitions of this broker, kept in line with the image of the cluster.

- ``next_step``: the stages of a partition, and the next step by an image, pure; ``unsettled``: records of partitions with work left
- ``partitions``: ``Partitions`` carries the steps out
- ``held``: ``HeldPartitions``, the partitions with a log and their parts; ``logs_in_image``: the image's leader of a log, pure
- ``opener``: ``Opener``, attempts to lead named partitions; ``opening``: ``Opening``, the checks and repairs before a log is led
- ``reading``: ``ManifestReading``, manifests of partitions that are led already; ``manifests``: ``Manifests`` makes and reads them
- ``start_report``: ``StartReport``, the end of a start, and log lines about lost and recovered offsets
- ``deleted_topics``: ``DeletedTopics``, partitions of deleted topics; ``leadership_lines``: log lines about leaderships
- ``manifest_copies``: local copies of manifests; ``tier_views``: followers' views of manifests
- ``sweeping``: deletes objects of deleted topics; ``lost_directory``: log lines for a start on a new directory
- ``left_behind``: the last log line of a replaced broker
"""
