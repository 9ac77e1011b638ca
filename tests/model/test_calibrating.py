"""Calibrating NC, keeping what was found in its file, and telling when it does not apply."""

import json
import math
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from torch import Tensor

from conftest import labelled_snapshot, precision, random_snapshot
from neural_complexity.learners.fit import Recipe, train_learners
from neural_complexity.learners.networks import mlp
from neural_complexity.losses import cross_entropy, squared_error
from neural_complexity.model import judgement as judging
from neural_complexity.model.card import Card
from neural_complexity.model.heads import HEADS
from neural_complexity.model.judgement import feature_names, features, judge
from neural_complexity.model.network import NeuralComplexity
from neural_complexity.reliability.calibration import Calibration, shift_p_values
from neural_complexity.reliability.gap_bounds import METHODS, PAC, margin, rank
from neural_complexity.reliability.methods import Method
from neural_complexity.seeding import stream
from neural_complexity.snapshot import Snapshot, gap
from neural_complexity.task import TaskFamily
from neural_complexity.tasks.families import Polynomials, Sinusoids

FOR_LABELS = {name: dict(head.for_labels) for name, head in HEADS.items()}
FIELDS = ("predicted", "true", "spread", "features")


def sinusoid_recipe(width: int = 40, steps: int = 16, lr: float = 0.01) -> Recipe:
    return Recipe(make=partial(mlp, 1, [width] * 2, 1), steps=steps, lr=lr)


def make(head: str = "posterior") -> NeuralComplexity:
    return NeuralComplexity(2, 1, head=head, width=8, heads=2)


def make_for_labels(head: str, inputs: int | tuple[int, ...] = 2) -> NeuralComplexity:
    options: dict[str, Any] = {"width": 8, "heads": 2, "channels": 4, "image_layers": 2}
    options |= {"head": head, "loss": cross_entropy.name, **FOR_LABELS[head]}
    return NeuralComplexity(inputs, 3, **options)


def calibrated(n: int = 6) -> NeuralComplexity:
    torch.manual_seed(0)
    nc, snapshot = make(), random_snapshot(n)
    nc.calibrate([(snapshot, torch.randn(n, 5, 1))])
    return nc


@pytest.mark.parametrize("head", ["posterior", "direct"])
def test_calibrating_compares_with_the_truth(head: str) -> None:
    nc, snapshot, Y_te = make(head), random_snapshot(6), torch.randn(6, 5, 1)
    assert nc.calibration is None
    nc.calibrate([(snapshot, Y_te)])
    found, judgement = nc.calibration, judge(nc, snapshot)
    assert found is not None
    assert torch.equal(found.predicted, judgement.gap)
    assert torch.equal(found.spread, judgement.spread)
    assert torch.equal(found.features, features(nc, snapshot, judgement))
    torch.testing.assert_close(found.true, gap(squared_error, snapshot, Y_te))
    torch.testing.assert_close(found.residuals, found.true - found.predicted)
    assert found.names == feature_names(nc)
    assert ("training loss" in found.names) == (head == "direct")
    assert found.sizes == ((4, 4), (5, 5))
    assert found.note == ""
    nc.calibrate([(snapshot[:4], Y_te[:4])])  # replaces what was
    assert nc.calibration is not None
    assert len(nc.calibration) == 4


def test_diverged_learners_are_left_out_and_counted() -> None:
    nc, snapshot, Y_te = make(), random_snapshot(6), torch.randn(6, 5, 1)
    snapshot.H_te[2, 0, 0] = torch.nan
    Y_te[0] = 1e300  # no number is large enough for this loss: an error, not a reason to leave out
    nc.calibrate([(snapshot, Y_te)])
    assert nc.calibration is not None
    assert len(nc.calibration) == 5
    assert nc.calibration.note == "1 of 6 learners diverged and are left out"
    assert nc.calibration.true.isinf().tolist() == [True, False, False, False, False]
    snapshot.H_te[:] = torch.nan
    with pytest.raises(ValueError, match="at least one learner must not have diverged, got 6"):
        nc.calibrate([(snapshot, Y_te)])


def test_sizes_of_which_all_learners_diverged_are_left_out() -> None:
    nc, lost = make(), random_snapshot(1, 3, 4)
    lost.H_te[:] = torch.nan
    fine = [(random_snapshot(2, M, 5), torch.randn(2, 5, 1)) for M in (6, 9)]
    nc.calibrate([fine[0], (lost, torch.randn(1, 4, 1)), fine[1]])
    assert nc.calibration is not None
    assert len(nc.calibration) == 4
    assert nc.calibration.sizes == ((6, 9), (5, 5))
    assert nc.calibration.note == "1 of 5 learners diverged and are left out"
    with pytest.raises(ValueError, match="at least one learner must not have diverged, got 0"):
        nc.calibrate([])


@pytest.mark.parametrize(
    ("Y_te", "sentence"),
    [
        (torch.zeros(6, 4, 1), "Y_te must agree with X_te on the number of points"),
        (torch.zeros(6, 5, 2), r"Y_te must be \(tasks, points, 1\)"),
        (torch.full((6, 5, 1), torch.nan), "Y_te must be finite"),
    ],
)
def test_targets_that_do_not_fit_are_refused(Y_te: Tensor, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        make().calibrate([(random_snapshot(6), Y_te.double())])


@pytest.mark.parametrize("head", ["posterior", "direct"])
@pytest.mark.parametrize("inputs", [(2,), (1, 8, 8)], ids=["vectors", "images"])
def test_labels_have_features_of_their_own(
    head: str, inputs: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    nc = make_for_labels(head, inputs if len(inputs) > 1 else inputs[0])
    snapshot = labelled_snapshot(6, inputs=inputs)
    nc.calibrate([(snapshot, torch.randint(3, (6, 5)))])
    assert nc.calibration is not None
    assert nc.calibration.names == feature_names(nc)
    assert "balance of the classes" in feature_names(nc)
    sure = Snapshot(*snapshot.tensors()[:4], 9 * snapshot.H_te)
    found = features(nc, sure, judge(nc, sure))
    if head == "posterior":  # NC is less sure of the loss of a learner that is sure of itself
        assert (found[:, 0] > nc.calibration.features[:, 0]).all()
    monkeypatch.setattr(judging, "VALUES", 1)  # learners one by one
    torch.testing.assert_close(features(nc, sure, judge(nc, sure)), found)


@settings(max_examples=10)
@given(B=st.integers(1, 4), M=st.integers(1, 9), N=st.integers(1, 5), C=st.integers(1, 4))
def test_features_of_any_sets_are_numbers(B: int, M: int, N: int, C: int) -> None:
    s = random_snapshot(B, M, N, C=C)
    for head in ("posterior", "direct"):
        nc = NeuralComplexity(2, C, head=head, width=8, heads=2)
        found = features(nc, s, judge(nc, s))
        assert found.shape == (B, len(feature_names(nc)))
        assert found.isfinite().all()
        labels = make_for_labels(head)
        labelled = labelled_snapshot(B, M, N, C=3)
        assert features(labels, labelled, judge(labels, labelled)).isfinite().all()
        s.H_tr[0] = torch.nan
        assert features(nc, s, judge(nc, s))[0].isnan().all()
        assert features(nc, s, judge(nc, s))[1:].isfinite().all()
        s.H_tr[0] = 0


# Files.


def test_one_input_far_away_does_not_say_it_all() -> None:
    nc, far, farther = make(), random_snapshot(4), random_snapshot(4)
    far.X_te[0, 0, 0], farther.X_te[0, 0, 0] = 1e2, 1e4
    names = ("shift from training to test inputs", "size of the inputs")
    places = [feature_names(nc).index(name) for name in names]
    found = [features(nc, s, judge(nc, s))[:, places] for s in (far, farther)]
    assert torch.equal(*found)


def test_classes_may_take_turns_among_training_points() -> None:
    torch.manual_seed(0)
    y = torch.arange(200) % 2
    X, H = 3.0 * y[:, None] + 0.1 * torch.randn(200, 2), torch.randn(200, 3)
    nc = make_for_labels("posterior")

    def surprise(order: Tensor) -> float:
        sets = (X[order], y[order], H[order], X[:20], H[:20])
        snapshot = Snapshot(*(t[None] for t in sets))
        return features(nc, snapshot, judge(nc, snapshot))[0, -1].item()

    mixed = [surprise(torch.randperm(200)) for _ in range(10)]
    span = max(mixed) - min(mixed)
    assert min(mixed) - span <= surprise(torch.arange(200)) <= max(mixed) + span


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("saved") / "nc.safetensors"
    with precision(torch.float64):
        nc = calibrated()
    nc.card = Card.from_json({"classes": ["a", "b"]})
    nc.save(path)
    return path


def header_of(path: Path) -> dict[str, str]:
    content = path.read_bytes()
    header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
    found: dict[str, str] = header["__metadata__"]
    del found["checksum"]  # what is changed on purpose has another, or none
    return found


def test_a_calibration_is_saved_and_loaded(saved: Path, tmp_path: Path) -> None:
    again = NeuralComplexity.load(saved)
    nc = calibrated()
    assert again.calibration is not None
    assert nc.calibration is not None
    for field in FIELDS:
        assert torch.equal(getattr(again.calibration, field), getattr(nc.calibration, field))
    for field in ("names", "sizes", "note"):
        assert getattr(again.calibration, field) == getattr(nc.calibration, field)
    assert again.provenance == {"classes": ["a", "b"]}
    nc.calibration = None
    nc.save(tmp_path / "nc.safetensors")
    assert NeuralComplexity.load(tmp_path / "nc.safetensors").calibration is None


def test_files_of_version_1_have_no_calibration(tmp_path: Path) -> None:
    nc, path = make(), tmp_path / "nc.safetensors"
    nc.save(path)
    save_file(load_file(path), path, header_of(path) | {"version": "1"})
    again = NeuralComplexity.load(path)
    assert again.calibration is None
    s = random_snapshot()
    assert torch.equal(again.predict(*s.tensors()), nc.predict(*s.tensors()))
    assert NeuralComplexity.pretrained("sinusoid").calibration is None  # a file of version 1


Change = Callable[[dict[str, Tensor], dict[str, str]], object]
text = st.sampled_from(["", "{}", "[]", "null", "3", "{", '{"names": 3}', '{"inputs": "x"}', "\0"])
texts = st.sampled_from(["format", "version", "architecture", "provenance", "calibration"])
CHANGES: dict[str, Change] = {
    "a tensor is missing": lambda t, _: t.pop("calibration.spread"),
    "a weight is missing": lambda t, _: t.pop("head.network.on_test.weight"),
    "a tensor too many": lambda t, _: t.update(other=torch.ones(1)),
    "the header of the calibration is missing": lambda _, h: h.pop("calibration"),
    "all of its tensors are missing": lambda t, _: [t.pop(f"calibration.{f}") for f in FIELDS],
    "learners are missing": lambda t, _: t.update(
        {"calibration.true": t["calibration.true"][:-1].clone()}
    ),
    "a feature is missing": lambda t, _: t.update(
        {"calibration.features": t["calibration.features"][:, 1:].clone()}
    ),
    "a weight has another shape": lambda t, _: t.update({"y_mean": torch.zeros(2)}),
    "not numbers": lambda t, _: t.update({"calibration.true": torch.full((6,), math.nan)}),
    "a kind of its own": lambda _, h: h.update(format="something"),
    "a newer version": lambda _, h: h.update(version="3"),
    "no version": lambda _, h: h.pop("version"),
    "no architecture": lambda _, h: h.pop("architecture"),
    "another architecture": lambda _, h: h.update(architecture='{"inputs": 2, "outputs": 9}'),
    "an impossible architecture": lambda _, h: h.update(architecture='{"inputs": 2, "outputs": 0}'),
    "no provenance": lambda _, h: h.pop("provenance"),
    "a provenance of another kind": lambda _, h: h.update(provenance="[]"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_changed_files_are_refused_in_one_sentence(
    change: str, saved: Path, tmp_path: Path
) -> None:
    tensors, header, path = load_file(saved), header_of(saved), tmp_path / "nc.safetensors"
    CHANGES[change](tensors, header)
    save_file(tensors, path, header)
    with pytest.raises(ValueError, match=r"nc.safetensors must (be|have|hold)") as caught:
        NeuralComplexity.load(path)
    assert "\n" not in str(caught.value)


@settings(max_examples=60)
@given(data=st.data())
def test_damaged_files_are_refused_or_load(
    data: st.DataObject, saved: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Whatever happens to a file, there is one clear sentence, or an NC."""
    path = tmp_path_factory.getbasetemp() / "damaged.safetensors"
    kind = data.draw(st.sampled_from(["cut", "foreign", "flipped", "header"]))
    whole = saved.read_bytes()
    if kind == "cut":
        path.write_bytes(whole[: data.draw(st.integers(0, len(whole) - 1))])
    elif kind == "foreign":
        path.write_bytes(data.draw(st.binary(max_size=200)))
    elif kind == "flipped":
        place = data.draw(st.integers(0, 3000))
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
    else:
        header = header_of(saved) | {data.draw(texts): data.draw(text)}
        save_file(load_file(saved), path, header)
    said, found = "", None
    try:
        found = NeuralComplexity.load(path)
    except ValueError as error:
        said = str(error)
    if found is None:
        assert "must" in said
        assert "\n" not in said
    else:
        assert kind in ("flipped", "header")  # a name or a number may be another one
        assert isinstance(found.calibration, Calibration)


# Learners of sinusoids, before the NCs that ship.


def learners(
    count: int, seed: int, family: TaskFamily | None = None, **recipe: Any
) -> tuple[Snapshot, Tensor]:
    tasks = (family or Sinusoids()).sample(count, stream(seed, "calibration tasks"))
    end = train_learners(sinusoid_recipe(**recipe), tasks, seed=seed).end.detach()
    return end, tasks.Y_te


@pytest.fixture(scope="module")
def population() -> tuple[Snapshot, Tensor]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float32)
    found = learners(2000, 0)
    torch.set_default_dtype(before)
    return found


@pytest.fixture(scope="module")
def others(population: tuple[Snapshot, Tensor]) -> dict[str, Snapshot]:
    """Learners that are unlike the population in one way each."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float32)
    some = population[0][1500:1600]
    found = {
        "moved": Snapshot(some.X_tr + 5, some.Y_tr, some.H_tr, some.X_te + 5, some.H_te),
        "long": learners(60, 1, steps=256)[0],
        "polynomials": learners(100, 2, Polynomials())[0],
    }
    torch.set_default_dtype(before)
    return found


def tolerance(p: float, draws: int) -> float:
    """Four standard deviations of a share of so many draws."""
    return 4 * math.sqrt(p * (1 - p) / draws)


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
def test_coverage_of_sinusoid_learners(method: Method, population: tuple[Snapshot, Tensor]) -> None:
    """A draw is a calibration set and a new learner, all drawn alike from 1,500 learners."""
    torch.set_default_dtype(torch.float32)
    nc, draws, confidence, delta = NeuralComplexity.pretrained("sinusoid"), 10_000, 0.9, 0.1
    snapshot, Y_te = population
    nc.calibrate([(snapshot[:1500], Y_te[:1500])])
    assert nc.calibration is not None
    residuals, spreads = nc.calibration.residuals, nc.calibration.spread
    n = 150
    drawn = torch.randint(len(residuals), (draws, n + 1))
    R, S = residuals[drawn], spreads[drawn]
    width = margin(
        R[:, :-1], S[:, :-1], S[:, -1], confidence=confidence, method=method, delta=delta
    )
    rate = float((R[:, -1].abs() <= width).double().mean())
    assert rate >= confidence - tolerance(confidence, draws)
    if method in PAC:
        ordered = residuals.abs().sort().values
        share = torch.searchsorted(ordered, width, right=True) / len(ordered)
        good = float((share >= confidence).double().mean())
        assert good >= 1 - delta - tolerance(delta, draws)
        # One rank less would be too few calibration sets, or the bound is not the tightest.
        k = rank(n, confidence, method=method, delta=delta) - 1
        fewer = R[:, :-1].abs().kthvalue(k, dim=1).values
        share = torch.searchsorted(ordered, fewer, right=True) / len(ordered)
        if method == "clopper_pearson":
            assert float((share >= confidence).double().mean()) < good
    assert float(width.mean()) < 0.2 * float(nc.calibration.true.std())


@pytest.mark.slow
@pytest.mark.parametrize("name", ["sinusoid", "sinusoid-direct"])
def test_unlike_learners_are_found_and_like_ones_are_not(
    name: str, population: tuple[Snapshot, Tensor], others: dict[str, Snapshot]
) -> None:
    torch.set_default_dtype(torch.float32)
    nc, (snapshot, Y_te) = NeuralComplexity.pretrained(name), population
    nc.calibrate([(snapshot[:500], Y_te[:500])])
    assert nc.calibration is not None

    def found(snapshot: Snapshot) -> Tensor:
        assert nc.calibration is not None
        return shift_p_values(nc.calibration, features(nc, snapshot, judge(nc, snapshot)))

    like = found(snapshot[500:1500])
    for a in (0.05, 0.1, 0.5):
        # Given one calibration set, the share is itself a random variable, of Beta's distribution.
        slack = tolerance(a, 500) + tolerance(a, len(like))
        assert abs(float((like <= a).double().mean()) - a) <= slack
    rates = {kind: float((found(these) <= 0.05).double().mean()) for kind, these in others.items()}
    # A direct head has no belief that the targets of another kind of task could belie.
    least = {"moved": 0.8, "polynomials": 0.6 if name == "sinusoid" else 0.2}
    if name == "sinusoid":  # learners that are trained for longer are as predictable as others
        assert rates.pop("long") < 0.2
    else:
        least["long"] = 0.4
    assert all(rate > least[kind] for kind, rate in rates.items()), rates
