"""``python -m firn_broker`` is ``firn``."""

import sys

from firn_broker.command import main

sys.exit(main())
