"""Watches over a running broker.

- ``health``: what it can serve; ``room``: the free space of the disk; ``spot_notice``: whether its machine is taken away
- ``loop_watch``: when the event loop stood still; ``stall_lines``: joins that watch to a broker
- ``traced_work``: spans of uploads and remote reads
"""
