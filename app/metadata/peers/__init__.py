"""What brokers of a cluster ask each other, and the seams through which they do. The shells that open connections are in
``app/broker/``.

- ``control``: requests between brokers, and ``ControlLink``
- ``place``: ``Places``, questions to the broker that has a node id
- ``liveness``: ``Liveness``, heartbeats in the bucket; ``redis_liveness``: heartbeats in Redis
- ``pulses``: what a thread beside the loop says of it to other brokers; ``pace``: whether the own loop is starved
"""
