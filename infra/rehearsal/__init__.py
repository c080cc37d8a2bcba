"""The rehearsal of a deployment: real boots of a Debian root, with stand-ins for AWS. Run it with ``make rehearse``."""
