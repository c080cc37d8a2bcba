"""``python -m app.cli`` is ``firn``."""

import sys

from app.cli import main

sys.exit(main())
