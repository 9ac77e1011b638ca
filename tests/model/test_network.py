import json
import re
from copy import deepcopy
from dataclasses import asdict, replace
from importlib import resources
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file
from torch.nn.functional import softplus

from conftest import labelled_snapshot, random_snapshot
from neural_complexity.beliefs import Categorical, Gaussian
from neural_complexity.learners.fit import Recipe, train_learners
from neural_complexity.losses import absolute_error, cross_entropy, squared_error, zero_one
from neural_complexity.meta.scores import r_squared
from neural_complexity.model import heads as heads_package
from neural_complexity.model.card import Card
from neural_complexity.model.judgement import judge
from neural_complexity.model.network import NeuralComplexity, find_nc
from neural_complexity.points import indexed
from neural_complexity.seeding import stream
from neural_complexity.snapshot import Snapshot
from neural_complexity.task import Task
from neural_complexity.tasks.families import Sinusoids

FOR_LABELS = {name: dict(head.for_labels) for name, head in heads_package.HEADS.items()}
_squareplus = cross_entropy.positive
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

# The same for labels.
PAPER = {**HEADS["paper"], "bilinear": True, "self_layers": 1, "loss_conditioning": True}
LABELLED: dict[str, dict[str, Any]] = {
    "posterior": {"head": "posterior", **FOR_LABELS["posterior"]},
    "direct": {"head": "direct", **FOR_LABELS["direct"]},
    "direct, metric": {"head": "direct", "symmetric": True, "metric": True, "rounds": 2},
    "direct, votes": {"head": "direct", "symmetric": True, "metric": True, "vote": True},
    "posterior, not symmetric": {"head": "posterior"},
    "direct, not symmetric": PAPER,
    "direct, votes, not symmetric": {"head": "direct", "metric": True, "rounds": 1, "vote": True},
}
SYMMETRIC = [name for name, options in LABELLED.items() if options.get("symmetric")]
POSTERIOR = [name for name, options in LABELLED.items() if options["head"] == "posterior"]
DIRECT = [name for name in LABELLED if name not in POSTERIOR]
IMAGE = (1, 8, 8)
labelled = pytest.mark.parametrize("head", LABELLED)
inputs = pytest.mark.parametrize("shape", [(2,), IMAGE], ids=["vectors", "images"])


def make(head: str, D: int = 2, C: int = 1, **more: Any) -> NeuralComplexity:
    torch.manual_seed(0)
    nc = NeuralComplexity(D, C, width=16, heads=4, **{**HEADS[head], **more})
    for name in ("x_mean", "x_scale", "y_mean", "y_scale"):
        getattr(nc, name).copy_(torch.rand_like(getattr(nc, name)) + 0.5)
    return nc


def make_labelled(
    head: str, shape: tuple[int, ...] = (2,), C: int = 3, **more: Any
) -> NeuralComplexity:
    """An NC for labels in the midst of training: no weight and no statistic as it starts."""
    torch.manual_seed(0)
    options = {"width": 8, "heads": 2, "channels": 4, "image_layers": 2, **LABELLED[head], **more}
    size = shape[0] if len(shape) == 1 else shape
    nc = NeuralComplexity(size, C, loss="cross_entropy", **options)
    with torch.no_grad():
        for parameter in nc.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
        for name, buffer in nc.named_buffers():
            if not name.startswith("y_"):  # labels have no units
                buffer.copy_(torch.rand_like(buffer) + 0.5)
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
    assert isinstance(belief, Gaussian)
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
    nc.card = Card.from_json({"seed": 3})
    nc.save(tmp_path / "nc.safetensors")
    again = NeuralComplexity.load(tmp_path / "nc.safetensors")
    assert torch.equal(again.predict(*s.tensors()), nc.predict(*s.tensors()))
    assert (again.card, again.architecture) == (nc.card, nc.architecture)


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
    header = {"format": "neural-complexity", "version": "3"}
    save_file({"a": torch.ones(1)}, path, header)
    with pytest.raises(ValueError, match="must have format version 1 or 2, got 3"):
        NeuralComplexity.load(path)
    header |= {
        "version": "1",
        "architecture": json.dumps(asdict(nc.architecture)),
        "provenance": "{}",
    }
    save_file({"a": torch.ones(1)}, path, header)
    with pytest.raises(ValueError, match="must hold a complete NC, got a damaged one"):
        NeuralComplexity.load(path)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"width": 30}, "width must be a multiple of heads, got width=30, heads=4"),
        ({"head": "tail"}, "head must be one of direct, posterior, got tail"),
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


@inputs
@labelled
@settings(max_examples=10)
@given(B=sizes, M=sizes, N=sizes, C=st.integers(1, 5), seed=st.integers(0, 1000))
def test_with_labels_any_sizes_any_order(
    head: str, shape: tuple[int, ...], B: int, M: int, N: int, C: int, seed: int
) -> None:
    nc, s = make_labelled(head, shape, C), labelled_snapshot(B, M, N, C, shape, seed)
    points = nc.predict_points(*s.tensors())
    assert points.shape == (B, N)
    assert points.isfinite().all()
    tr, te = torch.randperm(M), torch.randperm(N)
    mixed = (s.X_tr[:, tr], s.Y_tr[:, tr], s.H_tr[:, tr], s.X_te[:, te], s.H_te[:, te])
    torch.testing.assert_close(nc.predict_points(*mixed), points[:, te])
    torch.testing.assert_close(nc.predict(*mixed), points.mean(dim=1))
    row = slice(B - 1, B)
    torch.testing.assert_close(nc.predict_points(*s[row].tensors()), points[row])


@inputs
@labelled
def test_targets_of_training_points_are_told_apart(head: str, shape: tuple[int, ...]) -> None:
    """Any order would also do for an NC that does not look."""
    nc, s = make_labelled(head, shape), labelled_snapshot(inputs=shape)
    points = nc.predict_points(*s.tensors())
    other = (s.Y_tr + 1) % 3
    changed = nc.predict_points(s.X_tr, other, s.H_tr, s.X_te, s.H_te)
    offset = cross_entropy(s.H_tr, s.Y_tr).mean(dim=1) - cross_entropy(s.H_tr, other).mean(dim=1)
    expected_if_blind = points + (offset.unsqueeze(1) if nc.architecture.observed_loss else 0)
    assert not torch.allclose(changed, expected_if_blind, rtol=1e-4)
    moved = nc.predict_points(s.X_tr.flip(1), s.Y_tr, s.H_tr, s.X_te, s.H_te)
    assert not torch.allclose(moved, points, rtol=1e-6)


@inputs
@labelled
@settings(max_examples=10)
@given(seed=st.integers(0, 1000))
def test_a_symmetric_nc_does_not_care_what_classes_are_called(
    head: str, shape: tuple[int, ...], seed: int
) -> None:
    nc, s = make_labelled(head, shape, C=4), labelled_snapshot(C=4, inputs=shape, seed=seed)
    names = torch.tensor([2, 0, 3, 1])  # class c is now called names[c]
    old = names.argsort()
    renamed = (s.X_tr, names[s.Y_tr], s.H_tr[..., old], s.X_te, s.H_te[..., old])
    same = torch.allclose(nc.predict_points(*renamed), nc.predict_points(*s.tensors()), rtol=1e-9)
    assert same == (head in SYMMETRIC)


@inputs
@pytest.mark.parametrize("head", SYMMETRIC)
@pytest.mark.parametrize("C", [1, 2, 20])
def test_a_symmetric_nc_answers_for_any_number_of_classes(
    head: str, shape: tuple[int, ...], C: int
) -> None:
    """As an NC does that was made for that number and has the same weights."""
    nc, own = make_labelled(head, shape, C=10), make_labelled(head, shape, C=C)
    own.load_state_dict(
        {k: v for k, v in nc.state_dict().items() if not k.startswith("y_")}, strict=False
    )
    s = labelled_snapshot(M=2 * C, C=C, inputs=shape)
    torch.testing.assert_close(nc.predict_points(*s.tensors()), own.predict_points(*s.tensors()))
    if head in POSTERIOR:
        belief = nc.belief(s.X_tr, s.Y_tr, s.X_te, classes=C)
        assert isinstance(belief, Categorical)
        same = own.belief(s.X_tr, s.Y_tr, s.X_te)
        torch.testing.assert_close(belief.prediction, same.prediction)
        accuracies = [each.predict_accuracy(*s.tensors()) for each in (nc, own)]
        torch.testing.assert_close(*accuracies)


@inputs
@labelled
def test_with_labels_it_is_differentiable_in_the_predictions(
    head: str, shape: tuple[int, ...]
) -> None:
    nc, s = make_labelled(head, shape), labelled_snapshot(B=2, M=3, N=3, inputs=shape)
    H_tr, H_te = s.H_tr.clone().requires_grad_(), s.H_te.clone().requires_grad_()
    assert torch.autograd.gradcheck(
        lambda a, b: nc.predict(s.X_tr, s.Y_tr, a, s.X_te, b), (H_tr, H_te)
    )
    gradients = torch.autograd.grad(
        nc.predict(s.X_tr, s.Y_tr, H_tr, s.X_te, H_te).sum(), (H_tr, H_te)
    )
    assert all(gradient.abs().sum() > 0 for gradient in gradients)


@labelled
@pytest.mark.parametrize("extreme", [1e3, 1e30])
def test_extreme_logits_have_finite_gaps_and_gradients(head: str, extreme: float) -> None:
    nc, s = make_labelled(head), labelled_snapshot()
    H_tr = (extreme * s.H_tr.sign()).requires_grad_()
    H_te = (extreme * s.H_te.sign()).requires_grad_()
    predicted = nc.predict(s.X_tr, s.Y_tr, H_tr, s.X_te, H_te)
    assert predicted.isfinite().all()
    gradients = torch.autograd.grad(predicted.sum(), [H_tr, H_te, *nc.parameters()])
    assert all(gradient.isfinite().all() for gradient in gradients)


@inputs
@labelled
def test_encoding_is_embedding_and_then_context(head: str, shape: tuple[int, ...]) -> None:
    nc, s = make_labelled(head, shape), labelled_snapshot(inputs=shape)
    E_tr, E_te = nc.embed(s.X_tr), nc.embed(s.X_te)
    assert (E_tr.ndim, E_tr.shape[:2]) == (3, s.Y_tr.shape)
    gaps = nc.predict_points(*s.tensors())
    for context in (nc.encode(s.X_tr, s.Y_tr, s.X_te), nc.context(E_tr, s.Y_tr, E_te)):
        torch.testing.assert_close(nc.points(context, s.H_tr, s.H_te), gaps)
    # An embedding depends on no other input, and on no mode.
    torch.testing.assert_close(nc.embed(s.X_tr[1:2, 2:3]), E_tr[1:2, 2:3])
    torch.testing.assert_close(nc.embed(s.X_tr[1, 2]), E_tr[1, 2])
    assert torch.equal(nc.eval().embed(s.X_tr), nc.train().embed(s.X_tr))


@inputs
@pytest.mark.parametrize("head", POSTERIOR)
def test_with_labels_the_posterior_head_is_the_expected_loss_minus_the_training_loss(
    head: str, shape: tuple[int, ...]
) -> None:
    nc, s = make_labelled(head, shape), labelled_snapshot(inputs=shape)
    belief = nc.belief(s.X_tr, s.Y_tr, s.X_te)
    assert isinstance(belief, Categorical)
    loss_tr = cross_entropy(s.H_tr, s.Y_tr).mean(dim=1, keepdim=True)
    expected = cross_entropy.expected(s.H_te, belief) - loss_tr
    torch.testing.assert_close(nc.predict_points(*s.tensors()), expected)
    # So it is least where the learner believes what NC believes.
    at_belief = nc.predict(s.X_tr, s.Y_tr, s.H_tr, s.X_te, belief.prediction)
    assert (nc.predict(*s.tensors()) > at_belief).all()
    # And it pulls logits there: its gradient is the difference of probabilities.
    H_te = s.H_te.clone().requires_grad_()
    points = nc.predict_points(s.X_tr, s.Y_tr, s.H_tr, s.X_te, H_te)
    (pull,) = torch.autograd.grad(points.sum(), H_te)
    torch.testing.assert_close(pull, s.H_te.softmax(dim=-1) - belief.probabilities)


@pytest.mark.parametrize("head", POSTERIOR)
@settings(max_examples=10)
@given(t=st.floats(0, 1), seed=st.integers(0, 1000))
def test_with_labels_the_posterior_penalty_is_convex_in_h(head: str, t: float, seed: int) -> None:
    nc, s = make_labelled(head), labelled_snapshot(seed=seed)
    one, other = (5 * labelled_snapshot(seed=seed + shift).H_te for shift in (1, 2))

    def value(H_te: torch.Tensor) -> torch.Tensor:
        return nc.predict_points(s.X_tr, s.Y_tr, s.H_tr, s.X_te, H_te)

    between = value(t * one + (1 - t) * other)
    assert (between <= t * value(one) + (1 - t) * value(other) + 1e-9).all()


@labelled
def test_the_predicted_loss_is_the_gap_plus_the_training_loss(head: str) -> None:
    nc, s = make_labelled(head), labelled_snapshot()
    loss_tr = cross_entropy(s.H_tr, s.Y_tr).mean(dim=1)
    found = nc.predict_loss(*s.tensors())
    torch.testing.assert_close(found, nc.predict(*s.tensors()) + loss_tr)
    if nc.architecture.observed_loss:
        assert (found >= 0).all()


def test_the_predicted_loss_of_real_targets_is_the_gap_plus_the_training_loss() -> None:
    nc, s = make("posterior"), random_snapshot()
    loss_tr = squared_error(s.H_tr, s.Y_tr).mean(dim=1)
    torch.testing.assert_close(nc.predict_loss(*s.tensors()), nc.predict(*s.tensors()) + loss_tr)


@inputs
@pytest.mark.parametrize("head", POSTERIOR)
def test_the_predicted_accuracy_is_the_belief_in_the_chosen_class(
    head: str, shape: tuple[int, ...]
) -> None:
    nc, s = make_labelled(head, shape), labelled_snapshot(inputs=shape)
    belief = nc.belief(s.X_tr, s.Y_tr, s.X_te)
    assert isinstance(belief, Categorical)
    chosen = s.H_te.argmax(dim=-1, keepdim=True)
    share = belief.probabilities.gather(-1, chosen).squeeze(-1).mean(dim=1)
    torch.testing.assert_close(nc.predict_accuracy(*s.tensors()), share)
    # A share of drawn labels that are right, on average.
    Y = torch.multinomial(belief.probabilities.flatten(0, 1), 5000, replacement=True)  # (BN, 5000)
    H = s.H_te.flatten(0, 1)[:, None].expand(-1, 5000, -1)
    accuracy = (1 - zero_one(H, Y)).mean(dim=1).view(3, 5).mean(dim=1)
    torch.testing.assert_close(accuracy, share, rtol=0, atol=0.02)


@pytest.mark.parametrize("head", DIRECT)
def test_the_direct_head_predicts_no_accuracy(head: str) -> None:
    with pytest.raises(ValueError, match="belief needs the posterior head"):
        make_labelled(head).predict_accuracy(*labelled_snapshot().tensors())


def test_another_loss_is_expected_under_the_belief() -> None:
    nc, s = make("posterior"), random_snapshot()
    told = nc.predict_loss(*s.tensors(), loss=absolute_error)
    belief = nc.belief(s.X_tr, s.Y_tr, s.X_te)
    torch.testing.assert_close(told, absolute_error.expected(s.H_te, belief).mean(dim=1))
    with pytest.raises(ValueError, match="zero_one needs labels, got an NC for real targets"):
        nc.predict_loss(*s.tensors(), loss=zero_one)


def test_real_targets_have_no_accuracy() -> None:
    with pytest.raises(ValueError, match="an accuracy needs labels, got an NC for real targets"):
        make("posterior").predict_accuracy(*random_snapshot().tensors())


@inputs
@labelled
def test_with_labels_saving_and_loading_changes_nothing(
    head: str, shape: tuple[int, ...], tmp_path: Path
) -> None:
    nc, s = make_labelled(head, shape), labelled_snapshot(inputs=shape)
    nc.card = Card.from_json({"seed": 3})
    nc.save(tmp_path / "nc.safetensors")
    again = NeuralComplexity.load(tmp_path / "nc.safetensors")
    assert torch.equal(again.predict(*s.tensors()), nc.predict(*s.tensors()))
    assert (again.card, again.architecture) == (nc.card, nc.architecture)


@pytest.mark.parametrize("head", FOR_LABELS)
def test_for_tasks_finds_classes_units_and_statistics(head: str) -> None:
    s = labelled_snapshot(B=20, C=4, inputs=(2, 8, 8))
    scale = torch.tensor([3.0, 0.1]).view(2, 1, 1)
    Y_te = s.H_te.argmax(dim=-1)
    options: dict[str, Any] = {"width": 8, "channels": 4, "image_layers": 2, "head": head}
    found = []
    for X_tr, X_te in ((s.X_tr, s.X_te), (scale * s.X_tr + 7, scale * s.X_te + 7)):
        task = Task(X_tr, s.Y_tr, X_te, Y_te)
        torch.manual_seed(1)
        nc = NeuralComplexity.for_tasks(task, loss="cross_entropy", **options)
        assert nc.architecture.outputs == 4
        assert asdict(nc.architecture).items() >= {**options, **FOR_LABELS[head]}.items()
        E = nc.embed(task.X_tr)
        assert nc.image_encoder is not None
        again = deepcopy(nc.image_encoder)
        again.calibrate((X_tr - nc.x_mean) / nc.x_scale)
        torch.testing.assert_close(again.state_dict(), nc.image_encoder.state_dict())
        found.append((E, nc.predict(task.X_tr, s.Y_tr, s.H_tr, task.X_te, s.H_te)))
    # Other units of the pixels change nothing.
    torch.testing.assert_close(found[0], found[1], rtol=1e-6, atol=1e-8)
    # What is asked for counts more than what works best.
    plain = {"vote": False, "rounds": 0} if head == "posterior" else {"self_layers": 0}
    nc = NeuralComplexity.for_tasks(task, loss="cross_entropy", **options, **plain)
    assert asdict(nc.architecture).items() >= plain.items()


def test_an_image_encoder_that_is_taken_over_gives_the_same_embeddings_and_stays() -> None:
    nc, other = make_labelled("direct", IMAGE), make_labelled("posterior", IMAGE)
    with torch.no_grad():
        for value in [*other.parameters(), *other.buffers()]:
            value.add_(0.1)
    X = torch.randn(2, 3, *IMAGE)
    assert not torch.allclose(nc.embed(X), other.embed(X))
    nc.take_image_encoder(other)
    torch.testing.assert_close(nc.embed(X), other.embed(X))
    assert not nc.embed(X).requires_grad
    assert other.embed(X).requires_grad
    for different in (
        make_labelled("posterior", (2,)),
        make_labelled("posterior", (1, 9, 9)),
        make_labelled("posterior", IMAGE, channels=5),
        make_labelled("posterior", IMAGE, image_layers=1),
    ):
        for one, two in ((nc, different), (different, nc)):
            with pytest.raises(ValueError, match="the image encoders must have the same inputs"):
                one.take_image_encoder(two)


def test_with_the_image_encoder_the_sense_of_which_images_are_alike_is_taken_over() -> None:
    nc = make_labelled("direct", IMAGE, encoder_layers=1)
    other = make_labelled("posterior", IMAGE, encoder_layers=1)
    X, H = torch.randn(2, 3, *IMAGE), torch.randn(2, 3, 6)
    network, its = nc.head.network, other.head.network

    def places() -> tuple[torch.Tensor, torch.Tensor]:
        return network.place(torch.cat([nc.embed(X), H], dim=-1)), its.place(other.embed(X))

    before = deepcopy(other.state_dict())
    assert not torch.allclose(*places())
    nc.take_image_encoder(other)
    torch.testing.assert_close(*places())
    assert other.state_dict().keys() == before.keys()
    assert all(torch.equal(value, before[name]) for name, value in other.state_dict().items())
    # It is trained no further here, and goes on over there.
    assert [p.requires_grad for p in network.metric_layers.parameters()] == [False] * 3
    assert not places()[0].requires_grad
    assert all(p.requires_grad for p in other.parameters())
    frozen = {n for n, p in nc.named_parameters() if not p.requires_grad}
    assert all("image_encoder" in n or "metric_layers" in n for n in frozen)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.add_(1.0)
    assert not torch.allclose(*places())


@pytest.mark.parametrize(
    ("own", "its"),
    [
        ({"width": 12}, {}),
        ({"heads": 4}, {}),
        ({"encoder_layers": 2}, {"encoder_layers": 2}),
        ({}, {"encoder_layers": 2}),
        ({}, {"metric": False, "rounds": 0, "vote": False}),
        ({"metric": False, "rounds": 0}, {}),
    ],
)
def test_a_sense_of_another_size_or_kind_is_not_taken_over(
    own: dict[str, Any], its: dict[str, Any]
) -> None:
    nc = make_labelled("direct", IMAGE, **{"encoder_layers": 1, **own})
    other = make_labelled("posterior", IMAGE, **{"encoder_layers": 1, **its})
    before = deepcopy(nc.head.state_dict())
    nc.take_image_encoder(other)
    X = torch.randn(2, 3, *IMAGE)
    torch.testing.assert_close(nc.embed(X), other.embed(X))
    assert all(torch.equal(value, before[name]) for name, value in nc.head.state_dict().items())
    assert all(p.requires_grad for p in nc.head.parameters())


@pytest.mark.parametrize("head", ["direct", "direct, metric"])
def test_what_h_says_does_not_decide_which_images_are_alike(head: str) -> None:
    nc = make_labelled(head, IMAGE)
    assert nc.image_encoder is not None
    assert nc.head.network.metric_layers[0].in_features == nc.image_encoder.features
    assert not make_labelled("posterior", IMAGE).head.network.metric_layers


def test_squareplus_is_positive_rising_and_awake() -> None:
    x = torch.linspace(-50, 50, 2001, requires_grad=True)
    y = _squareplus(x)
    assert (y > 0).all()
    assert (y.diff() > 0).all()
    (slope,) = torch.autograd.grad(y.sum(), x)
    assert ((slope > 0) & (slope < 1)).all()
    assert (slope.diff() > 0).all()  # convex
    # Its inverse is x = y - 1 / y; far out it is x itself, or nothing.
    torch.testing.assert_close(y - 1 / y, x)
    torch.testing.assert_close(_squareplus(-x), 1 / y)
    # Where softplus has stopped, it goes on.
    low = torch.tensor(-20.0, requires_grad=True)
    slopes = [torch.autograd.grad(f(low), low)[0].item() for f in (_squareplus, softplus)]
    assert slopes[0] > 2e-3
    assert slopes[1] < 1e-8


def test_the_direct_heads_loss_of_labels_is_squareplus_of_its_answer() -> None:
    nc, s = make_labelled("direct"), labelled_snapshot()
    context = nc.encode(s.X_tr, s.Y_tr, s.X_te)
    points = nc.points(context, s.H_tr, s.H_te)
    nc.head.architecture = replace(nc.architecture, observed_loss=False)
    answer = nc.points(context, s.H_tr, s.H_te)
    losses = cross_entropy(s.H_tr, s.Y_tr).mean(dim=1, keepdim=True)
    torch.testing.assert_close(points + losses, _squareplus(answer))


def test_targets_decide_the_loss_the_number_of_outputs_and_the_units() -> None:
    real = Sinusoids().sample(4, stream(0, "tasks"))
    nc = NeuralComplexity.for_tasks(real, width=8)
    assert (nc.architecture.loss, nc.outputs, nc.symmetric) == ("squared_error", 1, False)
    torch.testing.assert_close(nc.x_mean, real.X_tr.mean(dim=(0, 1)))
    torch.testing.assert_close(nc.y_scale, real.Y_tr.std(dim=(0, 1), correction=0))
    labels = Task(real.X_tr, torch.zeros(4, 10).long(), real.X_te, torch.full((4, 15), 6))
    found = NeuralComplexity.for_tasks(labels, width=8, rounds=0).architecture
    assert (found.loss, found.outputs, found.rounds) == ("cross_entropy", 7, 0)
    assert found.vote


def test_for_tasks_refuses_an_unknown_head_for_labels_too() -> None:
    s = labelled_snapshot()
    task = Task(s.X_tr, s.Y_tr, s.X_te, s.H_te.argmax(dim=-1))
    with pytest.raises(ValueError, match="head must be one of direct, posterior, got tail"):
        NeuralComplexity.for_tasks(task, loss="cross_entropy", head="tail")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"rounds": 1}, "metric must be on for rounds and vote, got it off"),
        ({"vote": True}, "metric must be on for rounds and vote, got it off"),
        ({"rounds": -1, "metric": True}, "rounds must be at least 0, got -1"),
        ({"self_layers": -1}, "self_layers must be at least 0, got -1"),
        ({"channels": 0}, "channels must be at least 1, got 0"),
        ({"image_layers": 0}, "image_layers must be at least 1, got 0"),
        ({"loss": "squared_error", "metric": True, "vote": True}, "vote must be off for real"),
        ({"loss_conditioning": True}, "loss_conditioning must be off but for the direct head"),
        (
            {"loss": "squared_error", "head": "direct", "loss_conditioning": True},
            "loss_conditioning must be off but for the direct head on labels",
        ),
        ({"loss": "squared_error", "symmetric": True}, "symmetric must be off for real targets"),
        ({"loss": "zero_one"}, "loss must be one of squared_error, cross_entropy, got zero_one"),
        ({"inputs": (8, 8)}, "inputs must be a number of features or (channels, height, width)"),
        ({"inputs": (1, 0, 8)}, "inputs must be a number of features or (channels, height, width)"),
        ({"inputs": 0}, "inputs must be a number of features or (channels, height, width)"),
    ],
)
def test_impossible_architectures_for_labels_are_refused(
    arguments: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(ValueError, match=re.escape(sentence)) as caught:
        NeuralComplexity(**{"inputs": IMAGE, "outputs": 3, "loss": "cross_entropy", **arguments})
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("field", "value", "error", "sentence"),
    [
        (0, torch.zeros(3, 4, 1, 8, 7), ValueError, "number of features of X_*"),
        (0, torch.zeros(3, 4, 1, 4, 16), ValueError, "X_tr must be (tasks, points, 1, 8, 8), got"),
        (0, torch.zeros(3, 4, 64), ValueError, "X_tr must be (tasks, points, 1, 8, 8), got"),
        (0, torch.zeros(3, 4, 8, 8), ValueError, "X_tr must be (tasks, points, 1, 8, 8), got"),
        (
            0,
            torch.zeros(3, 4, 1, 8, 8, dtype=torch.uint8),
            TypeError,
            "X_tr must be torch.float64 like NC, got torch.uint8",
        ),
        (
            1,
            torch.zeros(3, 4, dtype=torch.float64),
            TypeError,
            "Y_tr must be labels of type torch.int64, got torch.float64",
        ),
        (
            1,
            torch.zeros(3, 4, 3, dtype=torch.float64),
            TypeError,
            "Y_tr must be labels of type torch.int64, got torch.float64",
        ),
        (1, torch.zeros(3, 4, dtype=torch.int32), TypeError, "labels of type torch.int64"),
        (1, torch.zeros(3, 4, dtype=torch.bool), TypeError, "labels of type torch.int64"),
        (
            1,
            torch.zeros(3, 4, 1, dtype=torch.int64),
            ValueError,
            "Y_tr must be (tasks, points), got shape (3, 4, 1)",
        ),
        (1, torch.zeros(3, dtype=torch.int64), ValueError, "Y_tr must be (tasks, points), got"),
        (1, torch.zeros(3, 5, dtype=torch.int64), ValueError, "Y_tr must agree with X_tr"),
        (1, torch.full((3, 4), 3), ValueError, "Y_tr must be from 0 to 2, got 3 to 3"),
        (1, torch.full((3, 4), -1), ValueError, "Y_tr must be from 0 to 2, got -1 to -1"),
        (1, [[0]], TypeError, "Y_tr must be a torch.Tensor, got list"),
        (2, torch.zeros(3, 4, 2), ValueError, "H_te must agree with H_tr on the number of"),
        (4, torch.full((3, 5, 3), torch.inf, dtype=torch.float64), ValueError, "must be finite"),
    ],
)
@pytest.mark.parametrize("head", ["posterior", "direct, not symmetric"])
def test_bad_images_and_labels_get_one_clear_sentence(
    head: str, field: int, value: Any, error: type[Exception], sentence: str
) -> None:
    given: list[Any] = list(labelled_snapshot(inputs=IMAGE).tensors())
    given[field] = value
    with pytest.raises(error, match=re.escape(sentence)) as caught:
        make_labelled(head, IMAGE).predict(*given)
    assert "\n" not in str(caught.value)


def test_points_are_checked_by_the_first_of_them() -> None:
    nc, s = make_labelled("posterior"), labelled_snapshot()
    for size, fits in ((2, True), (3, False)):
        X = indexed(torch.arange(12).view(3, 4), lambda i, D=size: torch.zeros(*i.shape, D))  # type: ignore[misc]
        tensors = {"X_tr": X, "Y_tr": s.Y_tr, "H_tr": s.H_tr}
        if fits:
            nc.check(classes=None, **tensors)
        else:
            with pytest.raises(ValueError, match=r"X_tr must be \(tasks, points, 2\)"):
                nc.check(classes=None, **tensors)


@pytest.mark.parametrize("head", ["posterior, not symmetric", "direct, not symmetric"])
@pytest.mark.parametrize("C", [2, 4])
def test_an_nc_that_is_not_symmetric_refuses_other_numbers_of_classes(head: str, C: int) -> None:
    nc, s = make_labelled(head), labelled_snapshot(C=C)
    sentence = f"labels must be of the 3 classes that NC was made for, got {C}"
    with pytest.raises(ValueError, match=sentence):
        nc.predict(*s.tensors())
    with pytest.raises(ValueError, match=sentence):
        nc.belief(s.X_tr, s.Y_tr, s.X_te, classes=C)


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


def test_all_that_ships_is_told() -> None:
    folder = Path(str(resources.files("neural_complexity"))) / "pretrained"
    files = sorted(path.stem for path in folder.glob("*.safetensors"))
    assert list(NeuralComplexity.pretrained_names()) == files


def test_the_pretrained_sinusoid_nc_predicts_the_gap_of_learners_it_has_not_seen(
    recipe: Recipe,
) -> None:
    nc = NeuralComplexity.pretrained("sinusoid")
    task = Sinusoids().sample(512, stream(7, "tasks never used in training"))
    end = train_learners(recipe, task, seed=7)
    assert r_squared(judge(nc, end.end).gap, end.gap) > 0.98
    with pytest.raises(
        ValueError, match="name must be one of digits, omniglot, omniglot-direct, sinusoid"
    ):
        NeuralComplexity.pretrained("cosine")


def test_an_nc_is_found_by_its_name_or_its_file(tmp_path: Path) -> None:
    path = tmp_path / "nc"
    NeuralComplexity(2, 3, width=8, heads=2).save(path)
    assert find_nc("sinusoid").outputs == 1
    assert find_nc(str(path)).outputs == find_nc(path).outputs == 3
    with pytest.raises(ValueError, match="nc must be a safetensors file or one of digits, .*cosin"):
        find_nc("cosine")
    for gone in (Path("sinusoid"), "gone.safetensors"):
        with pytest.raises(FileNotFoundError):
            find_nc(gone)


def test_points_too_large_to_compute_with_are_refused() -> None:
    s = random_snapshot()
    with pytest.raises(ValueError, match="points must be of a size that NC can compute with, got"):
        make("posterior").predict(1e300 * s.X_tr, *s.tensors()[1:])
