from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from neural_complexity.experiments.base.experiment import Outcome
from neural_complexity.experiments.base.rows import Key, find
from neural_complexity.experiments.base.run_folder import HEADS
from neural_complexity.experiments.surfaces import (
    AT_EDGE,
    DRAWN,
    EXPERIMENT,
    NCS,
    WITH_GAP,
    WITH_TEST,
    Plane,
    _contours,
    _expanded,
    _panels,
    _surfaces,
    gap_measure,
)
from neural_complexity.learners.batched import surface
from neural_complexity.learners.fit import Recipe
from neural_complexity.losses import squared_error
from neural_complexity.meta.scores import correlation
from neural_complexity.model.network import Context, NeuralComplexity
from neural_complexity.seeding import stream
from neural_complexity.snapshot import gap, take_snapshot
from neural_complexity.task import Task
from neural_complexity.tasks.image_datasets import VARIABLE
from neural_complexity.workspace import Workspace

pytestmark = pytest.mark.usefixtures("single_precision")

SMOKE = EXPERIMENT.presets["smoke"]()
SIDE = np.linspace(-1.0, 1.0, 9)


@pytest.fixture(scope="module", autouse=True)
def data(glyph_folder: str) -> Iterator[None]:
    """Lets the experiment find synthetic characters."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(VARIABLE, glyph_folder)
        yield


@pytest.fixture(scope="module")
def outcome() -> Outcome:
    torch.set_default_dtype(torch.float32)
    return EXPERIMENT.run(SMOKE, Workspace(None))


def value(outcome: Outcome, metric: str, task: int | None = None, **keys: Key) -> float:
    row = find(outcome.rows, metric, task=task, **keys)
    assert row is not None
    return row.value


def test_the_tables_are_full(outcome: Outcome) -> None:
    summary, drawn = EXPERIMENT.tables(outcome.rows)
    assert len(summary.rows) == 4
    assert len(drawn.rows) == DRAWN
    assert all(cell for line in drawn.rows for cell in line)


def test_the_rows_are_those_of_the_planes(outcome: Outcome) -> None:
    planes = {n: t.double() for n, t in outcome.tensors.items()}
    size, centre = SMOKE.size, SMOKE.size // 2
    for b in range(DRAWN):
        test = planes["test loss"][b]
        assert value(outcome, "test loss", b + 1, method="none") == test[centre, centre]
        assert value(outcome, "test loss", b + 1, method="oracle") == test.min()
        for keys in NCS:
            objective = planes[f"regularized loss, {keys['head']}"][b]
            at = int(objective.argmin())
            edge = bool({0, size - 1} & set(divmod(at, size)))
            assert value(outcome, AT_EDGE, b + 1, **keys) == edge
            assert value(outcome, "test loss", b + 1, **keys) == test.flatten()[at]
            for metric, first, second in (
                (WITH_TEST, objective, test),
                (WITH_GAP, planes[f"NC, {keys['head']}"][b], planes["gap"][b]),
            ):
                expected = correlation(first.flatten(), second.flatten()).item()
                assert value(outcome, metric, b + 1, **keys) == pytest.approx(expected)
    difference = planes["test loss"] - planes["train loss"]
    # They were computed in single precision.
    torch.testing.assert_close(planes["gap"], difference, atol=1e-5, rtol=1e-5)


def test_the_learner_has_learned(outcome: Outcome) -> None:
    """It stands lower than all around it, and the lowest point is no more than a step away."""
    for plane in outcome.tensors["train loss"]:
        centre = len(plane) // 2
        edge = torch.cat([plane[0], plane[-1], plane[:, 0], plane[:, -1]])
        assert plane[centre, centre] < 0.5 * plane.mean()
        assert plane[centre, centre] < edge.min()
        lowest = divmod(int(plane.argmin()), len(plane))
        assert all(abs(at - centre) <= 1 for at in lowest)


def test_no_objective_finds_a_lower_test_loss_than_the_oracle(outcome: Outcome) -> None:
    for task in (None, *range(1, DRAWN + 1)):
        best = value(outcome, "test loss", task, method="oracle")
        for keys in ({"method": "none"}, *NCS):
            assert best <= value(outcome, "test loss", task, **keys)
    for head in HEADS:
        total = outcome.tensors["train loss"] + outcome.tensors[f"NC, {head}"]
        objective = outcome.tensors[f"regularized loss, {head}"]
        torch.testing.assert_close(objective, total, atol=1e-5, rtol=1e-5)


def test_nc_knows_the_plane(outcome: Outcome) -> None:
    """Where the learner could hardly be better, NC does not lead it astray."""
    nc: dict[str, Any] = {"method": "NC", "head": "posterior"}
    assert value(outcome, WITH_GAP, **nc) > 0.95
    assert value(outcome, WITH_TEST, **nc) > value(outcome, WITH_TEST, method="none")
    assert value(outcome, "test loss", **nc) <= value(outcome, "test loss", method="none")


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"steps": 0}, "steps must be at least 1, got 0"),
        ({"chunk": 0}, "chunk must be at least 1, got 0"),
        ({"size": 1}, "size must be at least 3, got 1"),
        ({"size": 10}, "size must be odd, got 10"),
        ({"radius": 0.0}, "radius must be positive, got 0.0"),
        ({"lr": -1.0}, "lr must be positive, got -1.0"),
    ],
)
def test_impossible_configs_are_refused(change: dict[str, object], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        replace(SMOKE, **change)


def test_when_all_learners_diverge_the_run_says_so() -> None:
    with pytest.raises(FloatingPointError, match="learners must not all diverge, got 0"):
        EXPERIMENT.run(replace(SMOKE, lr=1e30), Workspace(None))


def bowls() -> dict[str, Plane]:
    """Planes of quadratic losses; the test loss is lowest beside the centre."""
    a, b = np.meshgrid(SIDE, SIDE, indexing="ij")
    train, test = a**2 + b**2, (a - 0.5) ** 2 + b**2 + 0.3
    planes = {"train loss": train, "test loss": test, "gap": test - train}
    for head in HEADS:
        planes |= {f"NC, {head}": test - train, f"regularized loss, {head}": test}
    return {**planes, "alpha": SIDE, "beta": SIDE}


def ends(planes: dict[str, Plane]) -> list[tuple[float, float]]:
    norms = [group[0][2]["norm"] for group in _panels(planes, HEADS)]
    return [(norm.vmin, norm.vmax) for norm in norms]


def test_one_corner_does_not_flatten_everything() -> None:
    planes = bowls()
    plain = ends(planes)
    planes["test loss"][0, 0] = planes["gap"][0, 0] = 1e9
    planes["NC, direct"] = planes["NC, direct"] * 1e9  # nor does an NC that is far off
    assert np.allclose(plain, ends(planes), rtol=0.1)
    assert all(low < high for low, high in ends(planes))


def test_lowest_points_and_the_learner_are_marked_in_every_panel() -> None:
    drawing = _contours({name: np.stack([plane, plane]) for name, plane in bowls().items()})
    panels = [ax for ax in drawing.canvas.axes if ax.get_xlim() == (-1.0, 1.0)]
    planes = [plane for group in _panels(bowls(), HEADS) for _, plane, _ in group]
    assert len(planes) == 7
    for ax, plane in zip(panels, planes * 2, strict=True):
        marked = {line.get_marker(): line.get_xydata().tolist() for line in ax.lines}  # type: ignore[union-attr]
        i, j = np.unravel_index(plane.argmin(), plane.shape)
        assert marked["x"] == [[0.0, 0.0]]
        assert marked["o"] == [[SIDE[j], SIDE[i]]]


def test_surfaces_stand_as_in_the_paper() -> None:
    canvas = _surfaces(bowls(), "direct").canvas
    titles = [ax.get_title() for ax in canvas.axes]
    assert titles == ["train loss", "gap", "NC, direct", "test loss", "train loss + NC, direct"]
    train, gap, nc, test, regularized = (ax.get_position() for ax in canvas.axes)
    assert train.x0 < gap.x0 == nc.x0 < test.x0 == regularized.x0
    assert gap.y0 == test.y0 > train.y0 > nc.y0 == regularized.y0


def test_in_the_centre_are_the_learners_own_losses(task: Task, recipe: Recipe) -> None:
    networks: dict[str, NeuralComplexity] = {}
    for head in HEADS:
        networks[head] = NeuralComplexity.for_tasks(task, head=head, width=8)
    loss = recipe.loss
    h = recipe.train(task, stream(0, "learners"))
    snapshot = take_snapshot(h, task)
    own = {
        "train loss": loss(snapshot.H_tr, task.Y_tr).mean(dim=1),
        "test loss": loss(snapshot.H_te, task.Y_te).mean(dim=1),
        "gap": gap(loss, snapshot, task.Y_te),
    }
    for name, nc in networks.items():
        own[f"NC, {name}"] = nc.predict(*snapshot.tensors())
        own[f"regularized loss, {name}"] = own["train loss"] + own[f"NC, {name}"]
    for b in range(2):
        measure = gap_measure(networks, task[b : b + 1], loss=loss)
        values = surface(h.one(b), measure, generator=stream(b), size=3, chunk=4)
        assert set(values) == {"alpha", "beta", *own}
        for name, value in own.items():
            torch.testing.assert_close(values[name][1, 1], value[b].detach())
            assert values[name].std() > 0


def test_the_task_is_encoded_once_for_the_whole_plane(
    task: Task, recipe: Recipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    nc = NeuralComplexity.for_tasks(task, width=8)
    seen = []
    encode = nc.encode

    def counted(X_tr: Tensor, Y_tr: Tensor, X_te: Tensor, *, classes: int | None) -> Context:
        seen.append(len(X_tr))
        return encode(X_tr, Y_tr, X_te, classes=classes)

    monkeypatch.setattr(nc, "encode", counted)
    h = recipe.train(task[:1], stream(0, "learners")).one(0)
    measure = gap_measure({"nc": nc}, task[:1], loss=recipe.loss)
    surface(h, measure, generator=stream(0), size=3, chunk=2)
    assert seen == [1]


def test_a_task_that_nc_cannot_judge_is_refused(task: Task) -> None:
    nc = NeuralComplexity.for_tasks(task, width=8)
    wide = task.X_tr[:1].expand(-1, -1, 2)
    fits_not = Task(wide, task.Y_tr[:1], wide, task.Y_tr[:1])
    with pytest.raises(ValueError, match="X_tr must be"):
        gap_measure({"nc": nc}, fits_not, loss=squared_error)


@dataclass(frozen=True)
class Leaf:
    x: Tensor
    name: str


@dataclass(frozen=True)
class Tree:
    leaf: Leaf
    y: Tensor | None


def test_what_is_expanded_keeps_its_shape_and_its_memory() -> None:
    x = torch.randn(1, 2, 3)
    found = _expanded(Tree(Leaf(x, "a"), None), 5)
    assert isinstance(found, Tree)
    assert found.leaf.x.shape == (5, 2, 3)
    assert found.leaf.x.data_ptr() == x.data_ptr()
    assert found.y is None
    assert found.leaf.name == "a"
