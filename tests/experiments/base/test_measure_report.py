from functools import partial

import torch

from neural_complexity.baselines.ranking import TAU
from neural_complexity.experiments.base.experiment import Outcome
from neural_complexity.experiments.base.measure_report import (
    ERROR,
    EVERY,
    LOST,
    MODELS,
    OWN,
    figures,
    tables,
)
from neural_complexity.experiments.base.rows import Row
from neural_complexity.meta.scores import Estimate, count

NC = OWN["posterior"]
TAUS = {"norm": 0.1, NC: 0.9, "margin": 0.5}


def outcome() -> Outcome:
    of = partial(Row.of, "measures", 0)
    all_but_one = torch.tensor([True, True, True, False])
    rows = [of(MODELS, count(all_but_one), dataset="digits")]
    rows += [of(LOST, count(~all_but_one), dataset="digits")]
    for measure, tau in TAUS.items():
        for dataset in ("digits", EVERY):
            rows.append(of(TAU, Estimate(tau, 0.1, 3), dataset=dataset, measure=measure))
        environment = {"dataset": "digits", "measure": measure, "environment": "lr: 0.1, 0.2"}
        rows.append(of(ERROR, Estimate(1 - tau, None, 3), **environment))
    rows.append(of(TAU, Estimate(0.99, 0.1, 3), dataset="digits", measure="of digits alone"))
    values = {f"digits/{name}": torch.arange(3.0) for name in (*TAUS, "gap")}
    return Outcome(rows, values)


def test_lines_are_sorted_by_tau() -> None:
    every, digits = tables(outcome().rows)
    assert [line[0] for line in every.rows] == [NC, "margin", "norm", "of digits alone"]
    assert [line[0] for line in digits.rows] == ["of digits alone", NC, "margin", "norm"]
    assert digits.rows[1][1] == "0.90 ± 0.10"
    assert "3 (+ 1 left out)" in digits.title


def test_figures_show_the_measures_that_all_datasets_have() -> None:
    taus, best, errors = (drawing.canvas for drawing in figures(outcome()))
    names = [label.get_text() for label in taus.axes[0].get_yticklabels()]
    assert names == ["norm", "margin", NC]  # the best is on top
    assert [ax.get_title() for ax in best.axes[:3]] == [NC, "margin", "norm"]
    image = errors.axes[0].images[0].get_array()
    assert image is not None
    torch.testing.assert_close(
        torch.as_tensor(image.data).flatten().double(), torch.tensor([0.1, 0.5, 0.9])
    )
