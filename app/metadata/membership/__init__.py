"""The membership of one broker.

- ``membership``: ``Membership``, a broker's view, registration and controller together
- ``member``: ``ClusterMember``, the life of one of several brokers
- ``joining``: the next step after a failed attempt to be registered, pure
- ``node_ids``: how a broker without a node id gets one
- ``isolation``: when a broker may no longer trust its own view, pure
"""
