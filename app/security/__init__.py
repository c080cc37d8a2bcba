"""Authentication and authorisation, pure: rules, keys and tokens come in, decisions come out.

- ``acls``: access control lists; ``authorizer``: ``Authorizer``, the decision about a principal
- ``login``: a SASL login as a table of states; ``sasl``, ``scram``, ``tokens``: the mechanisms; ``jaas``: ``sasl.jaas.config``
- ``delegation``: delegation tokens; ``names``: user names of certificates
- ``audit``, ``noting``: events of the audit log

A delegation token is a record in the cluster image; its secret follows from the brokers' key (ADR 0035). Keys of tokens of an
issuer are fetched by ``app/broker/security/token_keys.py``, and no login waits for them. No request waits for its audit
line: the line is made in memory when the response is there, and ``app/broker/security/audit_log.py`` writes it (ADR 0033).
"""
