"""Watches over a running broker.

- ``health``: what it can serve; ``loop_watch``: when the event loop stood still; ``spot_notice``: whether its machine is taken away
"""
