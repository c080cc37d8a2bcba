"""Requests with an `Idempotency-Key`: the part of the HTTP process (ADR 0043). Its parts:

- ``asked``: ``KeyedRequest``, the key and the digest of a request
- ``results``: ``ResultClient``, the keys and results at the brokers that lead them
- ``producing``: ``KeyedProducer``, which writes the records of a request and its result in one transaction
"""
