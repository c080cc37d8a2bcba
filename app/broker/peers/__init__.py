"""Calls to other brokers, over Kafka's protocol. They implement the seams of ``app/metadata/peers/``.

- ``control_link``: ``KafkaControlLink``, to other brokers; ``places``: asks and notifies the broker of a node id
- ``transaction_calls``: markers and partitions of transactions; ``pulse_thread``: pulses, from a thread beside the loop
"""
