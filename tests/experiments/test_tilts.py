import pytest
import torch

from neural_complexity.assessment.tilt import GRID, Assumed
from neural_complexity.experiments import tilts
from neural_complexity.experiments.base.experiment import Outcome
from neural_complexity.experiments.base.rows import select
from neural_complexity.model.network import NeuralComplexity
from smoke_runs import SmokeRuns

pytestmark = pytest.mark.usefixtures("single_precision")


@pytest.fixture(scope="module")
def outcome(smoke_runs: SmokeRuns) -> Outcome:
    return smoke_runs("tilts").outcome


def drawn(assumed: Assumed, n: int = 300) -> dict[str, torch.Tensor]:
    """Draws what is known of models whose tilts are as assumed, seen almost without noise."""
    g = torch.Generator().manual_seed(0)
    own = assumed.usual * torch.randn(n, generator=g).double()
    points = torch.randint(20, 500, (n,), generator=g)
    auc = torch.where(torch.rand(n, generator=g) < 0.5, 0.5, 0.9).double()
    variance = assumed.steady**2 + assumed.few**2 / points + (assumed.moving * (2 * auc - 1)) ** 2
    new = own + variance.sqrt() * torch.randn(n, generator=g).double()
    curves = [-50 * (GRID - t.unsqueeze(1)).square() for t in (own, new)]
    return {"seen": curves[0], "new": curves[1], "points": points, "auc": auc}


def test_what_was_assumed_is_learned_again() -> None:
    assumed = Assumed(0.5, 0.1, 3.0, 2.0)
    found = tilts._learn(drawn(assumed), 90)
    assert found.moving == pytest.approx(2.0, rel=0.2)
    assert found.few == pytest.approx(3.0, rel=0.3)
    assert found.usual == pytest.approx(0.5, rel=0.4)


def test_likelihoods_prefer_what_is_true() -> None:
    right, wrong = Assumed(0.5, 0.1, 3.0, 2.0), Assumed(0.5, 0.1, 3.0, 0.2)
    found = drawn(right)
    for share in tilts.WAYS.values():
        own, other = (tilts._likelihood(found, given, share).mean() for given in (right, wrong))
        assert own > other


def test_every_constant_and_every_kind_has_a_row(outcome: Outcome) -> None:
    names = [row.keys["constant"] for row in select(outcome.rows, "learned")]
    assert names == ["usual", "steady", "few", "moving"]
    for row in select(outcome.rows, "coverage"):
        assert 0 <= row.value <= 1
    seen = {row.keys["rows"] for row in select(outcome.rows, "coverage")}
    assert {"all", "linear", "tree"} <= seen
    assert len(tilts.EXPERIMENT.tables(outcome.rows)) == 4
    inside = outcome.tensors["NC/in use/inside"]
    assert set(inside.tolist()) <= {0.0, 1.0}


def test_numbers_are_measured_like_labels() -> None:
    config = tilts.Config(
        targets="numbers", train_rows=(20, 30), test_rows=20, kinds=("linear", "naive Bayes")
    )
    nc = NeuralComplexity.pretrained("tables-regression")
    found = tilts._measure(config, nc, 0)
    assert len(found["truth"]) == 1  # naive Bayes is for labels alone
    assert found["error"].shape == found["variance"].shape == found["seen"].shape == (1, len(GRID))
    # Without a tilt the error is what NC expects of it; each tilt multiplies that.
    ratio = found["error"][0, -1] / found["error"][0, len(GRID) // 2]
    assert ratio == pytest.approx(GRID[-1].exp())
    found["table"] = torch.zeros(1)
    scores = tilts._score(found, tilts.START, 0.0, labels=False)
    assert scores["off"] == pytest.approx((found["error"][:, 50] - found["truth"]).abs(), rel=1e-6)
