"""IAM policies of the bucket for each role of a Firn cluster, pure.

- ``calls``: the IAM actions that the calls of the S3 clients need; ``policy``: least-privilege policies by role
"""
