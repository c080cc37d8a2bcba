"""The name of Firn that nobody else has: the way into the command ``firn``, and the look for a foreign package ``app``.

Firn's modules live in a package named ``app``, and users have packages and programs of that name too. Nothing of this package
imports ``app`` before it has made sure that ``app`` is Firn's.
"""
