"""The command line. Here, and nowhere else, arguments and environment are read.

Must not know: how an option is parsed, how an engine or a server is made.
"""

from hotseat.cli.dispatch import main

__all__ = ["main"]
