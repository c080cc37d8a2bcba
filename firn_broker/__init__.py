"""The console script ``firn`` under a name that no other package has.

Firn's modules live in a package named ``app``, and users may have a package of that name. This package imports ``app`` only after
it has made sure that ``app`` is Firn's.

- ``command``: the entry; ``foreign_app``: the check; ``other_systems``: the sentence on macOS and Windows
"""
