"""Consumer instances of REST v2: consumers that live between requests. They know nothing of HTTP's bodies and media types.

- ``names``: ids of instances, and the process that owns one
- ``settings``: the settings that a client gives an instance
- ``positions``: the next offsets, those that the client is known to have, and those that are committed: pure
- ``instance``: one instance: subscription, reads, commits
- ``table``: the instances of a process: bounds, owners, expiry

Rules: docs/adr/0045-consumer-instances.md.
"""
