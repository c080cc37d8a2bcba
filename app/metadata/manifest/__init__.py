"""Segment manifests: the numbered log of a partition that says which of its segments are in the bucket.

- ``manifest``: ``SegmentManifest``; ``manifest_state``: ``ManifestState``, pure, the rules for its changes
- ``manifest_entries``: entries at hand for followers; ``manifest_listing``: lists the manifests of many partitions
"""
