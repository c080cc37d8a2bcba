"""Requests with an `Idempotency-Key` or an `If-Match`: the part of the HTTP process (ADR 0043). Its parts:

- ``asked``: ``KeyedRequest``, the key and the digest of a request
- ``results``: ``ResultClient``, the keys and results at the brokers that lead them
- ``if_match``: ETags of ends of partitions, and appends on condition that a partition ends there
- ``producing``: ``KeyedProducer``, which writes the records of a request and its result in one transaction
"""
