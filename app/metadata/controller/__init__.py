"""The controller: the only writer of the cluster log.

- ``controller``: ``Controller``, to which handlers submit plans; ``decisions``: its decisions, pure
- ``candidacy``: when a broker tries to become the controller, pure
- ``desk``: ``Desk``, the controller's service for other brokers; ``broker_sessions``: which brokers are alive, pure
- ``log_ends``: ends write-ahead logs of brokers that no longer lead
"""
