"""Transactions: the coordinator of transactional ids, and the markers that end a transaction in each partition.

- ``coordinator``: ``TransactionCoordinator``; ``shard``: ``TransactionShard``, the transactional ids of one partition, pure
- ``state``: the next state of a transaction for each request, pure; ``records``: its records
- ``ending``: ends decided transactions; ``markers``: writes markers; ``outbox``: markers to other brokers
- ``elsewhere``, ``link``: questions to other brokers
- ``looking``, ``deciding``, ``decisions``, ``recovery``: transactions after a loss of their coordinator's log (ADR 0037, J46)
- ``counters``, ``metrics``: metrics

A transaction ends in three steps: a Prepare record, a marker in every partition, a Complete record. Each is stored before the
next one begins. The client gets its response after the first. After a crash the next leader of the partition finds the Prepare
record and continues. With ``memory`` all three happen in one turn of the loop.
"""
