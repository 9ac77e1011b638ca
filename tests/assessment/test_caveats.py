import json
import math
from copy import deepcopy
from dataclasses import replace

import numpy as np
import torch

from assessed import calibrated, draw, example, make, outputs_of
from neural_complexity.assessment.assess import assess_predictions
from neural_complexity.model.card import Card, HeldOutReport
from neural_complexity.reliability.gap_bounds import METHODS


def test_doubts_are_told() -> None:
    found = example()
    assert any("not calibrated" in warning for warning in found.warnings)
    assert found.bound is None
    nc = make("labels")
    X, _, H, Z, G = draw(nc, 3, 4, 3)
    alone = assess_predictions(nc, X, [0, 1, 2], H, Z, G)
    assert alone.trust is None
    assert any("cannot be measured on 3 training points" in w for w in alone.warnings)
    # An untrained NC understands nothing.
    noise = assess_predictions(make("real"), *draw(make("real"), 50, 5, 1))
    assert noise.trust is not None
    assert noise.trust < 0.3
    assert any("does not understand this training set" in w for w in noise.warnings)


def test_test_points_that_nc_learned_from_are_told() -> None:
    nc = deepcopy(make("labels"))
    X, y, _, Z, _ = draw(nc, 6, 5, nc.outputs)
    model = outputs_of(nc)
    learned = nc.card.remember([torch.from_numpy(X), torch.from_numpy(Z[:2])])
    nc.card = replace(nc.card, learned_from=learned)
    told = nc.assess(model, X, y, np.asfortranarray(Z)).warnings
    assert any("trained on the inputs of 2 of the 5 test" in warning for warning in told)
    assert not any("trained on the inputs" in w for w in nc.assess(model, X, y, Z[2:]).warnings)


def test_what_went_wrong_when_nc_was_made_is_told() -> None:
    nc = deepcopy(make("labels"))
    X, y, _, Z, _ = draw(nc, 6, 5, nc.outputs)
    found = nc.assess(outputs_of(nc), X, y, Z)
    nc.card = Card(report=HeldOutReport(verdict="NC cannot. Do not."))
    assert nc.assess(outputs_of(nc), X, y, Z).warnings[0] == "When it was made: NC cannot. Do not."
    kind = {"what": "training loss", "from": 0.0, "to": 99.0, "mean_error": 0.1, "bias": 9.0}
    nc.card = Card(report=HeldOutReport(beats_the_mean_gap=True, kinds=(kind,)))
    assert "gaps were too large by 9 on" in nc.assess(outputs_of(nc), X, y, Z).warnings[0]
    kind["bias"] = 0.01 * found.gap
    assert nc.assess(outputs_of(nc), X, y, Z).warnings == found.warnings


def test_a_calibrated_nc_bounds_the_gap_and_tells_strangers() -> None:
    nc, learner = calibrated()
    usual = [t[0] for t in learner(1).tensors()]
    found = assess_predictions(nc, *usual, confidence=0.9)
    assert found.bound is not None
    assert found.bound.low <= found.gap <= found.bound.high
    assert found.bound.low >= -found.loss_tr - 1e-9
    assert found.unlike is not None
    assert found.unlike.p_value > 0.05
    assert not any("shift" in w or "sizes" in w or "calibrat" in w for w in found.warnings)
    assert f"p = {found.unlike.p_value:.2g}" in repr(found)
    X, y, H, Z, G = usual
    odd = assess_predictions(nc, X, y, H + 50, Z, G + 50)
    assert any("differs from what NC was calibrated on" in warning for warning in odd.warnings)
    many = assess_predictions(nc, X.repeat(9, 1), y.repeat(9, 1), H.repeat(9, 1), Z, G)
    assert any("72 training points against 8" in warning for warning in many.warnings)
    few, enough = (assess_predictions(calibrated(n)[0], *usual).warnings for n in (19, 20))
    assert any("calibrated on 19 learners, too few to test" in warning for warning in few)
    assert not any("too few to test" in warning for warning in enough)
    sure = assess_predictions(nc, *usual, confidence=0.999)
    assert sure.bound is not None
    assert math.isinf(sure.bound.high)
    assert any("too few" in warning for warning in sure.warnings)
    json.dumps(sure.to_dict(), allow_nan=False)
    assert len(sure.plot().axes) == 2
    for method in METHODS:
        got = assess_predictions(nc, *usual, confidence=0.8, method=method).bound
        assert got is not None
        assert got.method == method
