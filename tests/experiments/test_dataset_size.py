from dataclasses import replace

import pytest
import torch

from neural_complexity.experiments.base.rows import find
from neural_complexity.experiments.dataset_size import PRESETS, run
from neural_complexity.meta.scores import r_squared
from neural_complexity.workspace import Workspace
from smoke_runs import SmokeRuns


def test_gaps_and_estimates_are_those_at_the_end(smoke_runs: SmokeRuns) -> None:
    outcome = smoke_runs("dataset_size").outcome
    rows, tensors = outcome.rows, outcome.tensors
    for size in (100, 1000):
        for keys, name in (
            ({"method": "true"}, "gap"),
            ({"method": "NC", "head": "direct"}, "predicted/direct"),
        ):
            row = find(rows, "gap", **keys, size=size)
            assert row is not None
            assert row.value == pytest.approx(tensors[f"{size}/{name}"][-1].mean().item())
            assert row.n == 2
    gaps, own = (
        torch.cat([tensors[f"{size}/{name}"][-1] for size in (100, 1000)])
        for name in ("gap", "predicted/posterior")
    )
    fit = find(rows, "R2", method="NC", head="posterior", snapshots="endpoints")
    assert fit is not None
    assert fit.value == pytest.approx(r_squared(own, gaps).item(), rel=1e-4)
    assert gaps[:2].mean() > gaps[2:].mean()  # fewer images are overfitted more


def test_impossible_sizes_are_refused(smoke_runs: SmokeRuns) -> None:
    smoke = PRESETS["smoke"]()
    with pytest.raises(ValueError, match=r"sizes must be at least 1, got \(0,\)"):
        replace(smoke, sizes=(0,))
    with pytest.raises(ValueError, match="sizes must hold at least one number, got none"):
        replace(smoke, sizes=())
    config = replace(smoke_runs.config("dataset_size"), sizes=(1438,))
    with pytest.raises(ValueError, match="sizes must be at most the 1437 training images, got"):
        run(config, Workspace(None))
