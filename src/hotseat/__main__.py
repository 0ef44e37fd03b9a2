"""``python -m hotseat`` is ``hotseat``."""

import sys

from hotseat.cli import main

sys.exit(main())
