"""Migration of groups between the classic and the consumer protocol (ADR 0008).

- ``migration``: converts a whole group; ``classic_in_consumer``: members of the classic protocol in a consumer group
"""
