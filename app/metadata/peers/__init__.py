"""Requests between brokers of a cluster, and the seams for them. The shells that open connections are in
``app/broker/``.

- ``control``: requests between brokers, and ``ControlLink``
- ``place``: ``Places``, questions to the broker that has a node id
- ``liveness``: ``Liveness``, heartbeats in the bucket; ``redis_liveness``: heartbeats in Redis
- ``pulses``: a thread beside the loop reports to other brokers when the loop turned last
- ``pace``: whether the own loop is starved
"""
