"""The command line: parse, call, print. Importing it loads no torch."""

from hardsight.cli._main import main as main
