"""Groups of the consumer protocol (KIP-848): each member moves towards the target assignment with its own heartbeats. Pure.

- ``consumer``: ``ConsumerGroup``; ``consumer_records``: its records; ``subscriptions``: subscriptions and regular expressions
- ``assignors``: target assignments; ``reconciliation``: moves a member to its target
"""
