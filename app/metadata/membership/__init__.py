"""The membership of one broker.

- ``membership``: ``Membership``, a broker's view, registration and controller together
- ``member``: ``ClusterMember``, the life of one of several brokers
- ``node_ids``: how a broker without a node id gets one
- ``isolation``: when a broker may no longer trust its own view, pure
"""
