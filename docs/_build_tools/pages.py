"""Judge the results in ``results/`` again and write their pages, after a rule or a text changed.

``PYTHONPATH=. python docs/_build_tools/pages.py [NAME ...]``. Title and introduction come from the
experiment, with the settings of the run. The command states every setting that differs from today's
defaults. Tables and claims follow from the stored numbers if the experiment can judge them again.
Numbers and figures stay as they are, and so does a remark that a person added. Prints every claim
whose verdict has changed.
"""

import dataclasses
import sys
from pathlib import Path
from typing import Any

from hardsight.experiments import EXPERIMENTS, Result
from hardsight.experiments.lab import command_of, read_result, stored_setting, write_result

RESULTS = Path(__file__).parents[2] / "results"


def renewed(result: Result, facts: dict[str, Any]) -> tuple[Result, dict[str, Any]]:
    """A stored result and its facts, with the rules and the wording of today."""
    spec = EXPERIMENTS[facts["name"]]
    setting = stored_setting(spec, facts)
    facts |= {
        "title": spec.title,
        "reproduces": spec.reproduces,
        "about": spec.about(setting),
        "command": command_of(spec, facts["scale"], setting),
        "setting": dataclasses.asdict(setting),
    }
    return spec.judged(setting, result, result.data), facts


def changed_verdicts(before: Result, after: Result) -> list[str]:
    """Claims that came out otherwise, or were not there, in words."""
    old = {claim.says: claim.verdict for claim in before.claims}
    return [
        f"{old.get(claim.says, 'not asked')} -> {claim.verdict}: {claim.says} ({claim.seen})"
        for claim in after.claims
        if old.get(claim.says) != claim.verdict
    ]


def main(names: list[str]) -> None:
    """Renew the named results, or all."""
    for folder in sorted(RESULTS.iterdir()):
        if (folder / "result.json").exists() and (not names or folder.name in names):
            before, facts = read_result(folder)
            after, facts = renewed(before, facts)
            write_result(after, facts, folder)
            for line in changed_verdicts(before, after):
                print(f"{folder.name}: {line}")


if __name__ == "__main__":
    main(sys.argv[1:])
