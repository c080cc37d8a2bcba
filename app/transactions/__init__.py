"""Transactions: the coordinator of transactional ids, and the markers that end a transaction in each partition.

- ``coordinator``: ``TransactionCoordinator``; ``shard``: ``TransactionShard``, the transactional ids of one partition, pure
- ``state``: the next state of a transaction for each request, pure; ``records``: its records
- ``ending``: ends decided transactions; ``markers``: writes markers; ``outbox``: markers to other brokers
- ``elsewhere``, ``link``: questions to other brokers
- ``looking``, ``deciding``, ``decisions``, ``recovery``: transactions after a loss of their coordinator's log (ADR 0037, J46)
- ``counters``, ``metrics``: metrics
"""
