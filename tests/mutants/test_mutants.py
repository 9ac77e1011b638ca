from pathlib import Path

import pytest

import neural_complexity
from mutants.mutants import MUTANTS, Mutant

PACKAGE = Path(neural_complexity.__file__).parent


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_each_bug_can_be_made(mutant: Mutant) -> None:
    assert (PACKAGE / mutant.file).read_text().count(mutant.old) == 1


def test_there_are_enough_bugs_and_each_has_a_name() -> None:
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS) >= 24
