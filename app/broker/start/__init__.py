"""The broker as a process: its start, its child processes, and files and sockets that show it to others.

- ``process``: ``Broker``, the process; ``children``: child processes; ``cleaning``: the cleaner process
- ``running``, ``service``, ``http_address``: the process seen from outside
- ``node_id``: the node id of a data directory; ``late_tls``: late errors of TLS
"""
