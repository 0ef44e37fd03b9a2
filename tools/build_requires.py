"""Print what else a build on this machine needs from PyPI: cmake and ninja where they are missing or too old."""

import sys

from scikit_build_core.build import get_requires_for_build_editable

sys.stdout.write("\n".join(get_requires_for_build_editable({})) + "\n")
