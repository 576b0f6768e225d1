"""Start time: ``hardsight --help`` against ``python -c pass``."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence

from benchmarks._measure import arguments, interleaved, publish, row


def main(args: Sequence[str] | None = None) -> None:
    options = arguments(__doc__).parse_args(args)

    def command(*words: str) -> None:
        subprocess.run([sys.executable, *words], check=True, stdout=subprocess.DEVNULL)

    seconds = interleaved(
        {
            "python -c pass": lambda: command("-c", "pass"),
            "hardsight --help": lambda: command("-m", "hardsight", "--help"),
            "hardsight score --help": lambda: command("-m", "hardsight", "score", "--help"),
        },
        repeats=max(10, options.repeats),
    )
    base = row("python -c pass", seconds["python -c pass"])["median_s"]
    rows = [row(name, values) for name, values in seconds.items()]
    rows = [{**entry, "more_than_python_s": round(entry["median_s"] - base, 4)} for entry in rows]
    publish("Start time (target: at most 0.25 s more than python)", rows, file=options.out)


if __name__ == "__main__":
    main()
