from collections.abc import Callable

import pytest
import torch

from neural_complexity.experiments.base.experiment import Outcome
from neural_complexity.experiments.base.rows import Key, Row, find
from neural_complexity.experiments.base.run_folder import HEADS
from neural_complexity.experiments.harm import (
    EXPERIMENT,
    FAMILIES,
    HELD_OUT,
    MODES,
    PAPERS,
    SAFE,
    SOURCES,
)
from neural_complexity.seeding import stream
from neural_complexity.task import TaskFamily
from smoke_runs import SmokeRuns


@pytest.fixture
def outcome(smoke_runs: SmokeRuns) -> Outcome:
    return smoke_runs("harm").outcome


def row(outcome: Outcome, metric: str, **keys: Key | None) -> Row:
    found = find(outcome.rows, metric, **keys)
    assert found is not None
    return found


@pytest.mark.parametrize("family", ["step functions", "real tables", "polynomials"])
@pytest.mark.parametrize("head", HEADS)
def test_an_nc_of_sinusoids_harms_other_families_and_the_safeguard_prevents_it(
    outcome: Outcome, head: str, family: str
) -> None:
    nc = {"head": head, "source": "sinusoids", "family": family}
    none = row(outcome, "test loss", family=family, method="none").value
    assert row(outcome, "change", **nc, mode=PAPERS).value > 0.2 * none
    safe = row(outcome, "change", **nc, mode=SAFE)
    assert safe.ci95 is not None
    assert safe.value < max(safe.ci95, 0.02 * none)


def test_every_task_is_helped_unchanged_or_hurt(outcome: Outcome) -> None:
    for mode in MODES:
        keys = {"family": "step functions", "head": "direct", "source": "sinusoids", "mode": mode}
        shares = [row(outcome, m, **keys).value for m in ("helped", "unchanged", "hurt")]
        assert sum(shares) == pytest.approx(1)


def test_every_family_is_judged_by_an_nc_of_every_source(outcome: Outcome) -> None:
    for family in FAMILIES:
        for head in HEADS:
            for source in SOURCES:
                nc = {"head": head, "source": source, "family": family}
                assert row(outcome, "R2", **nc, mode=None).value <= 1
                assert 0 <= row(outcome, "trust", **nc, mode=SAFE).value <= 1
                safe, papers = (row(outcome, "test loss", **nc, mode=m) for m in (SAFE, PAPERS))
                by = row(outcome, "change by the safeguard", **nc).value
                assert by == pytest.approx(safe.value - papers.value, abs=1e-5)
    assert len(outcome.networks) == len(HEADS) * len(SOURCES)
    assert len(outcome.history) == len(HEADS) * (len(SOURCES) - 1)  # sinusoids come trained


def test_nc_is_judged_on_rows_of_real_tables_that_it_was_not_trained_on() -> None:
    def pairs(families: dict[str, Callable[[], TaskFamily]]) -> set[tuple[float, ...]]:
        task = families["real tables"]().sample(256, stream(0, "tasks"))
        train, test = torch.cat([task.X_tr, task.Y_tr], -1), torch.cat([task.X_te, task.Y_te], -1)
        return {tuple(pair) for pair in torch.cat([train, test], 1).flatten(0, 1).tolist()}

    seen, judged = pairs(FAMILIES), pairs(HELD_OUT)
    # Iris has few distinct rows, so that some pairs of columns occur in both halves.
    assert len(judged - seen) > 0.5 * len(judged)


def test_tables_have_a_line_for_each_pair_of_families(outcome: Outcome) -> None:
    summary, changes, shares = EXPERIMENT.tables(outcome.rows)
    pairs = len(SOURCES) * len(FAMILIES)
    assert len(changes.rows) == len(shares.rows) == len(HEADS) * pairs
    for mode in range(len(MODES)):
        own, other = (summary.rows[i + mode] for i in (0, len(MODES)))
        assert sum(map(int, own[1:])) == len(SOURCES)
        assert sum(map(int, other[1:])) == pairs - len(SOURCES)
