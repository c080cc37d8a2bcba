"""From whole frames to responses.

- ``session``: ``Session``, the requests of a connection; ``server``: the Kafka listeners
- ``dispatch``: the tables of all families; ``doors``: logins before the first request
- ``traced``: connections of a broker that traces
"""
