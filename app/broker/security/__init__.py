"""Security of a broker: listeners, users, keys and the audit log, made of its settings.

- ``listener_doors``: the authentication of each listener; ``connection_limits``: how many connections are admitted
- ``first_users``: the first users of a cluster; ``log_keys``: keys of the cluster log
- ``token_keys``: public keys that tokens are verified with; ``token_sweep``: removes delegation tokens that have ended
- ``broker_audit``, ``audit_log``, ``audit_topic``: the audit log
"""
