"""``python -m hardsight`` is the same program as ``hardsight``."""

from hardsight.cli import main

main(prog_name="hardsight")
