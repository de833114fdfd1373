"""The command line, for every test of this folder."""

from command_line import cli, small

__all__ = ["cli", "small"]
