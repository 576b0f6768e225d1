"""The whole command line on random files: the right numbers, or a refusal in words.

``HARDSIGHT_FUZZ_CASES`` is the number of cases, ``HARDSIGHT_FUZZ_FIRST`` that of the first of
them, ``HARDSIGHT_FUZZ_SEED`` the seed; ``make test-fuzz`` runs those after the first. What fails is
shrunk, its files are kept, and the message has the one command that runs it again.
"""

from __future__ import annotations

import logging
import os
import shutil

import pytest

from tests.fuzz.cases import Answer, run_case, shrunk, told, warm_up
from tests.fuzz.draw import Draw
from tests.fuzz.grammar import maker_of

CASES = int(os.environ.get("HARDSIGHT_FUZZ_CASES", "100"))
FIRST = int(os.environ.get("HARDSIGHT_FUZZ_FIRST", "0"))
SEED = int(os.environ.get("HARDSIGHT_FUZZ_SEED", "0"))
CHUNK = 25
AS_PROGRAM = 2000  # one case in so many starts a program of its own, which takes seconds


@pytest.fixture(scope="module", autouse=True)
def imported():
    warm_up()
    log = logging.getLogger("hardsight")
    level = log.level
    log.setLevel(logging.INFO)  # that of the commands: a change of level takes a millisecond
    yield
    log.setLevel(level)


@pytest.mark.parametrize("first", range(FIRST, FIRST + CASES, CHUNK))
def test_every_answer_is_right_or_a_refusal_in_words(first, tmp_path):
    failures, answers = [], list[Answer]()
    for number in range(first, min(first + CHUNK, FIRST + CASES)):
        draw = Draw(SEED, number)
        place = tmp_path / str(number)
        started = number % AS_PROGRAM == 0
        failure = run_case(maker_of(draw), draw, place, as_program=started, answers=answers)
        if failure is None:
            shutil.rmtree(place)
        else:
            failures.append((draw, failure))
    if failures:
        draw, failure = failures[0]
        failures[0] = (draw, shrunk(maker_of(draw), draw, failure, tmp_path / "smaller"))
        texts = "\n".join(told(failure, SEED) for _, failure in failures)
        pytest.fail(f"{len(failures)} of {CHUNK} cases failed\n{texts}", pytrace=False)
    # refusing everything would be right, too, and would test nothing
    assert sum(answer.exit_code == 0 for answer in answers) >= len(answers) // 4
