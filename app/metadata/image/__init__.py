"""The image of the cluster: the state that results from the entries of the cluster log. Pure.

- ``records``: every kind of record of the cluster log, and the feature levels from which on each may be written
- ``image``: ``ClusterImage`` and its parts, and ``ImageDelta`` between two images
- ``draft``: ``ImageDraft``, from which the next image is made, and ``ClusterState``, the state of the cluster log
- ``copy_on_write``: the maps of a draft
- ``wal_ranges``: where the records of a partition are in write-ahead logs

The draft imports the image, and the image imports the records.
"""
