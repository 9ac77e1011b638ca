import json
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save_file

from conftest import random_snapshot
from neural_complexity.learners.recipe import Recipe
from neural_complexity.losses import Gaussian, squared_error
from neural_complexity.meta.evaluate import follow, predict_gaps
from neural_complexity.meta.scores import r_squared
from neural_complexity.model.complexity import NeuralComplexity
from neural_complexity.seeding import stream
from neural_complexity.snapshot import Snapshot
from neural_complexity.task import Task
from neural_complexity.tasks.sinusoid import Sinusoids

HEADS: dict[str, dict[str, Any]] = {
    "posterior": {"head": "posterior"},
    "direct": {"head": "direct"},
    "paper": {
        "head": "direct",
        "query_skip": False,
        "observed_loss": False,
        "pool_first": True,
        "scale_by_width": True,
    },
    "posterior, one decoder layer": {"head": "posterior", "decoder_layers": 1},
    "direct, one decoder layer": {"head": "direct", "decoder_layers": 1},
}
heads = pytest.mark.parametrize("head", HEADS)
sizes = st.integers(1, 6)


def make(head: str, D: int = 2, C: int = 1, **more: Any) -> NeuralComplexity:
    torch.manual_seed(0)
    nc = NeuralComplexity(D, C, width=16, heads=4, **{**HEADS[head], **more})
    for name in ("x_mean", "x_scale", "y_mean", "y_scale"):
        getattr(nc, name).copy_(torch.rand_like(getattr(nc, name)) + 0.5)
    return nc


@heads
@given(B=sizes, M=sizes, N=sizes, D=sizes, C=sizes, seed=st.integers(0, 1000))
def test_any_sizes_any_order(head: str, B: int, M: int, N: int, D: int, C: int, seed: int) -> None:
    nc, s = make(head, D, C), random_snapshot(B, M, N, D, C, seed)
    points = nc.predict_points(*s.tensors())
    assert points.shape == (B, N)
    torch.testing.assert_close(nc.predict(*s.tensors()), points.mean(dim=1))
    tr, te = torch.randperm(M), torch.randperm(N)
    mixed = (s.X_tr[:, tr], s.Y_tr[:, tr], s.H_tr[:, tr], s.X_te[:, te], s.H_te[:, te])
    torch.testing.assert_close(nc.predict_points(*mixed), points[:, te])
    torch.testing.assert_close(nc.predict(*mixed), points.mean(dim=1))


@heads
def test_batch_rows_are_independent(head: str) -> None:
    nc, s = make(head), random_snapshot(B=4)
    together = nc.predict_points(*s.tensors())
    for b in range(4):
        torch.testing.assert_close(nc.predict_points(*s[b : b + 1].tensors()), together[b : b + 1])


@heads
def test_it_is_differentiable_in_the_predictions(head: str) -> None:
    nc, s = make(head), random_snapshot(B=2, M=3, N=3)
    H_tr, H_te = s.H_tr.clone().requires_grad_(), s.H_te.clone().requires_grad_()
    assert torch.autograd.gradcheck(
        lambda a, b: nc.predict(s.X_tr, s.Y_tr, a, s.X_te, b), (H_tr, H_te)
    )
    for gradient in torch.autograd.grad(
        nc.predict(s.X_tr, s.Y_tr, H_tr, s.X_te, H_te).sum(), (H_tr, H_te)
    ):
        assert gradient.abs().sum() > 0


@heads
def test_encoding_once_equals_predicting_at_once(head: str) -> None:
    nc, s = make(head), random_snapshot()
    context = nc.encode(s.X_tr, s.Y_tr, s.X_te)
    for H_te in (s.H_te, s.H_te + 1):
        expected = nc.predict_points(s.X_tr, s.Y_tr, s.H_tr, s.X_te, H_te)
        torch.testing.assert_close(nc.points(context, s.H_tr, H_te), expected)


def test_the_posterior_head_is_the_expected_loss_minus_the_training_loss() -> None:
    nc, s = make("posterior", C=2), random_snapshot(C=2)
    belief = nc.belief(s.X_tr, s.Y_tr, s.X_te)
    assert (belief.variance > 0).all()
    loss_tr = squared_error(s.H_tr, s.Y_tr).mean(dim=1, keepdim=True)
    expected = squared_error.expected(s.H_te, belief) - loss_tr
    torch.testing.assert_close(nc.predict_points(*s.tensors()), expected)
    # So it is least where the learner believes what NC believes.
    at_mean = nc.predict(s.X_tr, s.Y_tr, s.H_tr, s.X_te, belief.mean)
    assert (nc.predict(*s.tensors()) > at_mean).all()


@given(t=st.floats(0, 1), seed=st.integers(0, 1000))
def test_the_posterior_penalty_is_convex_in_h(t: float, seed: int) -> None:
    nc, s, other = make("posterior"), random_snapshot(seed=seed), random_snapshot(seed=seed + 1)

    def value(H_te: torch.Tensor) -> torch.Tensor:
        return nc.predict(s.X_tr, s.Y_tr, s.H_tr, s.X_te, H_te)

    between = value(t * s.H_te + (1 - t) * other.H_te)
    assert (between <= t * value(s.H_te) + (1 - t) * value(other.H_te) + 1e-9).all()


def test_the_direct_heads_test_loss_is_never_negative() -> None:
    nc, s = make("direct"), random_snapshot(B=20)
    s = Snapshot(s.X_tr, s.Y_tr, s.H_tr, s.X_te, 100 * s.H_te)
    loss_tr = squared_error(s.H_tr, s.Y_tr).mean(dim=1, keepdim=True)
    assert (nc.predict_points(*s.tensors()) + loss_tr >= 0).all()


def test_pooled_first_all_points_get_the_same_answer() -> None:
    points = make("paper").predict_points(*random_snapshot().tensors())
    torch.testing.assert_close(points, points[:, :1].expand_as(points))


@heads
def test_units_of_the_data_are_units_of_the_prediction(head: str) -> None:
    """The same tasks in other units of x and y give the same gap in those units."""
    s = random_snapshot(B=50)
    task = Task(s.X_tr, s.Y_tr, s.X_te, s.H_te)
    torch.manual_seed(1)
    nc = NeuralComplexity.for_tasks(task, width=16, heads=4, **HEADS[head])
    torch.manual_seed(1)
    scaled = Task(1000 * s.X_tr - 5, 0.01 * s.Y_tr + 3, 1000 * s.X_te - 5, 0.01 * s.H_te + 3)
    other = NeuralComplexity.for_tasks(scaled, width=16, heads=4, **HEADS[head])
    H = 0.01 * s.H_tr + 3
    predicted = other.predict(scaled.X_tr, scaled.Y_tr, H, scaled.X_te, scaled.Y_te)
    torch.testing.assert_close(predicted / 0.01**2, nc.predict(*s.tensors()), rtol=1e-5, atol=1e-6)


def test_constant_features_do_no_harm() -> None:
    s = random_snapshot()
    task = Task(torch.zeros_like(s.X_tr), torch.ones_like(s.Y_tr), s.X_te, s.H_te)
    nc = NeuralComplexity.for_tasks(task, width=16, heads=4)
    assert nc.predict(*s.tensors()).isfinite().all()


@heads
def test_saving_and_loading_changes_nothing(head: str, tmp_path: Path) -> None:
    nc, s = make(head), random_snapshot()
    nc.provenance = {"seed": 3}
    nc.save(tmp_path / "nc.safetensors")
    again = NeuralComplexity.load(tmp_path / "nc.safetensors")
    assert torch.equal(again.predict(*s.tensors()), nc.predict(*s.tensors()))
    assert (again.provenance, again.architecture) == ({"seed": 3}, nc.architecture)


def test_files_of_another_kind_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "nc.safetensors"
    with pytest.raises(FileNotFoundError, match="must be a safetensors file, got no such file"):
        NeuralComplexity.load(path)
    nc = make("posterior")
    nc.save(path)
    whole = path.read_bytes()
    for length in (0, 4, 100, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:length])
        with pytest.raises(ValueError, match="must be a safetensors file, got a damaged one"):
            NeuralComplexity.load(path)
    save_file({"a": torch.ones(1)}, path)
    with pytest.raises(ValueError, match="got a safetensors file of another kind"):
        NeuralComplexity.load(path)
    header = {"format": "neural-complexity", "version": "2"}
    save_file({"a": torch.ones(1)}, path, header)
    with pytest.raises(ValueError, match="must have format version 1, got 2"):
        NeuralComplexity.load(path)
    header |= {"version": "1", "architecture": json.dumps(nc.architecture), "provenance": "{}"}
    save_file({"a": torch.ones(1)}, path, header)
    with pytest.raises(ValueError, match="must hold a complete NC, got a damaged one"):
        NeuralComplexity.load(path)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"width": 30}, "width must be a multiple of heads, got width=30, heads=4"),
        ({"head": "tail"}, "head must be posterior or direct, got tail"),
        ({"encoder_layers": 0}, "encoder_layers must be at least 1, got 0"),
        ({"decoder_layers": 0}, "decoder_layers must be at least 1, got 0"),
        ({"loss": "hinge"}, "loss must be one of squared_error, cross_entropy, got hinge"),
        ({"pool_first": True}, "pool_first must be off for the posterior head"),
    ],
)
def test_impossible_architectures_are_refused(arguments: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        NeuralComplexity(1, 1, **arguments)


@pytest.mark.parametrize(
    ("field", "value", "error", "sentence"),
    [
        (
            0,
            torch.zeros(3, 4, 3),
            ValueError,
            "X_te must agree with X_tr on the number of features",
        ),
        (1, torch.zeros(3, 4, 2), ValueError, r"Y_tr must be \(tasks, points, 1\)"),
        (2, torch.zeros(3, 5, 1), ValueError, "H_tr must agree with X_tr on the number of points"),
        (3, torch.zeros(2, 5, 2), ValueError, "X_te must agree with X_tr on the number of tasks"),
        (4, torch.zeros(3, 0, 1), ValueError, "H_te must not be empty"),
        (4, torch.zeros(3, 5), ValueError, "H_te must be"),
        (
            4,
            torch.full((3, 5, 1), torch.nan, dtype=torch.float64),
            ValueError,
            "H_te must be finite, got NaN or infinity",
        ),
        (
            0,
            torch.full((3, 4, 2), torch.inf, dtype=torch.float64),
            ValueError,
            "X_tr must be finite",
        ),
        (
            1,
            torch.zeros(3, 4, 1, dtype=torch.int64),
            TypeError,
            "Y_tr must be torch.float64 like NC",
        ),
        (3, [[1.0]], TypeError, "X_te must be a torch.Tensor, got list"),
    ],
)
def test_bad_input_gets_one_clear_sentence(
    field: int, value: Any, error: type[Exception], sentence: str
) -> None:
    inputs: list[Any] = list(random_snapshot().tensors())
    inputs[field] = value
    with pytest.raises(error, match=sentence) as caught:
        make("posterior").predict(*inputs)
    assert "\n" not in str(caught.value)


def test_the_direct_head_has_no_beliefs() -> None:
    s = random_snapshot()
    with pytest.raises(ValueError, match="belief needs the posterior head"):
        make("direct").belief(s.X_tr, s.Y_tr, s.X_te)
    assert isinstance(make("posterior").belief(s.X_tr, s.Y_tr, s.X_te), Gaussian)


# The gaps of four learners that predict 0 everywhere, from when the networks were made.
SHIPPED = {
    "sinusoid": [-0.092925, 0.738825, 0.879046, -1.564668],
    "sinusoid-direct": [-0.084190, 0.776523, 0.661521, -1.596964],
}


@pytest.mark.parametrize("name", SHIPPED)
def test_the_shipped_networks_still_predict_what_they_did(name: str) -> None:
    torch.set_default_dtype(torch.float32)  # as they were trained
    task = Sinusoids().sample(64, stream(3, "reference"))[slice(0, 4)]
    H_tr, H_te = torch.zeros_like(task.Y_tr), torch.zeros_like(task.Y_te)
    predicted = NeuralComplexity.pretrained(name).predict(
        task.X_tr, task.Y_tr, H_tr, task.X_te, H_te
    )
    assert predicted.tolist() == pytest.approx(SHIPPED[name], rel=1e-4)


def test_the_pretrained_sinusoid_nc_predicts_the_gap_of_learners_it_has_not_seen(
    recipe: Recipe,
) -> None:
    nc = NeuralComplexity.pretrained("sinusoid")
    task = Sinusoids().sample(512, stream(7, "tasks never used in training"))
    end = follow(recipe, task, seed=7)
    assert r_squared(predict_gaps(nc, end.end), end.gap) > 0.98
    with pytest.raises(
        ValueError, match="name must be one of sinusoid, sinusoid-direct, got cosine"
    ):
        NeuralComplexity.pretrained("cosine")
