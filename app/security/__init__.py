"""Authentication and authorisation, pure: rules, keys and tokens come in, decisions come out.

- ``acls``: access control lists; ``authorizer``: ``Authorizer``, the decision about a principal
- ``login``: a SASL login as a table of states; ``sasl``, ``scram``, ``tokens``: the mechanisms; ``jaas``: ``sasl.jaas.config``
- ``delegation``: delegation tokens; ``names``: user names of certificates
- ``audit``, ``noting``: events of the audit log
"""
