"""Groups of the consumer protocol (KIP-848): each member moves towards the target assignment with its own heartbeats. Pure.

- ``consumer``: ``ConsumerGroup``; ``consumer_records``: its records; ``subscriptions``: subscriptions and regular expressions
- ``members``: ``Member``, and ``MemberIndex``, which counts members by topic, expression and assignor
- ``targets``: computes target assignments, by an assignor of ``assignors``; ``reconciliation``: moves a member to its target
"""
