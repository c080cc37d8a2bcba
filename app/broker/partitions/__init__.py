"""The partitions of this broker, kept in line with the image of the cluster.

- ``partitions``: ``Partitions``
- ``manifest_copies``: local copies of manifests; ``tier_views``: followers' views of manifests
- ``sweeping``: deletes objects of deleted topics; ``lost_directory``: log lines for a start on a new directory
"""
