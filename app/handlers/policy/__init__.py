"""Callers, quotas and the audit log: state that belongs to principals.

- ``callers``: ``Caller`` and ``Rights``
- ``client_quotas``, ``quota_leases``: quotas
- ``auditing``, ``audited_changes``: the audit log
"""
