"""The command line: wiring and printing. Results go to stdout, progress and messages to stderr."""

from tuner.cli.main import main

__all__ = ["main"]
