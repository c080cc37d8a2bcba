"""Groups of the classic protocol: a rebalance is a barrier, and one member computes the assignment.

- ``classic``: ``ClassicGroup``; ``classic_member``: its members; ``embedded``: subscriptions inside the protocol's bytes
"""
