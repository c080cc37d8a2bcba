"""The monthly cost of a workload, pure: from a workload, list prices and counted requests to dollars.

- ``workload``: ``Workload``; ``requests``: requests to the object store; ``prices``: AWS list prices
- ``bill``: ``Bill``, of Firn and of Kafka; ``measured``: the bill of the last hour, from counters
- ``spark``: Spark jobs that read from the bucket
"""
