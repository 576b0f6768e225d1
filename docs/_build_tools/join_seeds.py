"""Join results of one experiment that were run with different seeds, and judge them together.

``PYTHONPATH=. python docs/_build_tools/join_seeds.py results/NAME OTHER/result.json``. Settings
must be the same except for the seeds. Numbers per seed are put side by side, lost runs are added
up, and anything else must be equal; a number that only one of the two files has is left out.
Figures stay as they are. The page says so, and also says that somebody looked twice.
"""

import json
import sys
from pathlib import Path
from typing import Any

from hardsight.experiments import EXPERIMENTS, Result
from hardsight.experiments.lab import command_of, read_result, stored_setting, write_result

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

from pages import changed_verdicts, renewed  # noqa: E402


def joined(first: Any, second: Any, counts: tuple[int, int], key: str = "") -> Any:
    """Data of both: ``counts`` seeds of the first and the second, ``key`` of what is joined."""
    if isinstance(first, dict) and isinstance(second, dict):
        both = [name for name in first if name in second]
        return {name: joined(first[name], second[name], counts, f"{key} {name}") for name in both}
    if isinstance(first, list) and isinstance(second, list):
        if (len(first), len(second)) == counts:
            return first + second
        if len(first) == len(second):
            return [joined(*pair, counts, key) for pair in zip(first, second, strict=True)]
    if "lost" in key.split():
        return first + second
    if first == second:
        return first
    raise SystemExit(f"cannot join {key}: {first!r} and {second!r}")


def main(folder: str, other: str) -> None:
    """Write the joined result over the first."""
    place = Path(folder)
    before, facts = read_result(place)
    more = json.loads(Path(other).read_text(encoding="utf-8"))
    seeds, new_seeds = facts["seeds"], more["seeds"]
    if set(seeds) & set(new_seeds):
        raise SystemExit(f"both have some of the seeds {seeds} and {new_seeds}")
    for part in ("name", "scale", "versions", "hardware"):
        if facts[part] != more[part]:
            raise SystemExit(f"{part}: {facts[part]} and {more[part]}")
    same = {**facts["setting"], "seeds": None} == {**more["setting"], "seeds": None}
    if not same:
        raise SystemExit("the settings differ in more than the seeds")
    data = joined(before.data, more["data"], (len(seeds), len(new_seeds)))
    facts["seeds"] = [*seeds, *new_seeds]
    facts["setting"]["seeds"] = facts["seeds"]
    facts["training_seconds"] += more["training_seconds"]
    facts["seconds"] += more["seconds"]
    figures = f" The figure shows seeds {seeds[0]} to {seeds[-1]}." if before.figures else ""
    facts["remark"] = (
        f"Seeds {', '.join(map(str, new_seeds))} were run after the earlier ones had been seen; "
        f"p-values are not corrected for the second look.{figures}"
    )
    spec = EXPERIMENTS[facts["name"]]
    facts["command"] = command_of(spec, facts["scale"], stored_setting(spec, facts))
    result, facts = renewed(Result(before.tables, before.claims, before.figures, data), facts)
    write_result(result, facts, place)
    print(*changed_verdicts(before, result), sep="\n")
    for claim in result.claims:
        print(f"  {claim.verdict}: {claim.says} ({claim.seen})")


if __name__ == "__main__":
    main(*sys.argv[1:])
