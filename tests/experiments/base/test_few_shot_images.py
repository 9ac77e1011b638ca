from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from neural_complexity.experiments.base.few_shot_images import (
    PROTOTYPICAL,
    EmbeddedTasks,
    FewShotConfig,
    HeldOut,
    LabelTraining,
    add_rounds,
    direct,
    draw_held_out_tasks,
    posterior,
    train_and_predict,
    without_learner,
)
from neural_complexity.losses import cross_entropy
from neural_complexity.meta.trainer import MetaTraining
from neural_complexity.model.architecture import Architecture
from neural_complexity.model.judgement import judge
from neural_complexity.model.network import NeuralComplexity
from neural_complexity.points import values
from neural_complexity.seeding import stream
from neural_complexity.snapshot import Snapshot
from neural_complexity.task import Task
from neural_complexity.tasks.images import FewShot


@pytest.mark.parametrize("training", [LabelTraining(), posterior(), direct()])
def test_every_setting_reaches_nc_or_its_training(training: LabelTraining) -> None:
    images: dict[str, Any] = {"inputs": (1, 28, 28), "outputs": 10, "loss": "cross_entropy"}
    for head in ("posterior", "direct"):
        own = Architecture(**images, **training.architecture(head))
        assert (own.head, own.channels, own.rounds) == (head, training.channels, training.rounds)
    learned = MetaTraining(**training.learning())
    assert learned.pseudo_predictions == training.made_up
    assert (learned.criterion, learned.run) == (training.criterion, training.run)


@pytest.mark.parametrize(
    "name", ["width", "heads", "encoder_layers", "decoder_layers", "batch", "validation_tasks"]
)
def test_sizes_have_bounds_also_where_their_defaults_are_others(name: str) -> None:
    with pytest.raises(ValueError, match=f"{name} must be at least 1, got 0"):
        replace(LabelTraining(), **{name: 0})  # type: ignore[arg-type]


def test_held_out_characters_are_others_and_half_of_their_images_unlabelled(
    glyph_folder: str,
) -> None:
    config = FewShotConfig(data=glyph_folder, ways=4, queries=2, train_queries=3)
    train, (task, X_unlabelled) = config.train_family(), draw_held_out_tasks(config)
    assert (train.queries, task.X_te.shape[1], X_unlabelled.shape[1]) == (3, 8, 8)
    ours = values(train.images(torch.arange(len(train.images)))).flatten(1)
    for X in (task.X_tr, task.X_te, X_unlabelled):
        assert torch.cdist(X.flatten(0, 1).flatten(1), ours).min() > 0


def test_learners_have_their_own_rates() -> None:
    config = FewShotConfig(lr=0.5, cnn_lr=0.2, ways=4)
    for kind, lr in (("MLP", 0.5), ("CNN", 0.2)):
        recipe = config.recipe((1, 28, 28), kind)
        assert recipe.lr == lr
        assert recipe.make()(torch.zeros(2, 1, 28, 28, dtype=torch.get_default_dtype())).shape == (
            2,
            4,
        )


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"eval_tasks": 1}, "eval_tasks must be at least 2, got 1"),
        ({"steps": 0}, "steps must be at least 1, got 0"),
        ({"ways": 0}, "ways must be at least 1, got 0"),
        ({"lr": -1.0}, "lr must be positive, got -1.0"),
        ({"device": "abacus"}, "device must be one that works here, got abacus"),
    ],
)
def test_impossible_configs_are_refused(change: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        replace(FewShotConfig(), **change)


def test_impossible_trainings_are_refused() -> None:
    for change, sentence in (
        ({"made_up": 1.1}, "made_up must be from 0 to 1, got 1.1"),
        ({"channels": 0}, "channels must be at least 1, got 0"),
        ({"criterion": "cubed"}, "criterion must be huber or squared, got cubed"),
    ):
        with pytest.raises(ValueError, match=sentence):
            replace(posterior(), **change)


@pytest.fixture
def config(glyph_folder: str) -> FewShotConfig:
    return FewShotConfig(data=glyph_folder, ways=3, shots=1, queries=2, eval_tasks=4)


@pytest.fixture
def tasks(config: FewShotConfig) -> HeldOut:
    return draw_held_out_tasks(config)


def make(tasks: HeldOut, head: str) -> EmbeddedTasks:
    nc = NeuralComplexity.for_tasks(tasks[0], head=head, width=8, heads=2, channels=4)
    return EmbeddedTasks(nc, tasks)


def gaps(embedded: EmbeddedTasks, rows: slice, snapshot: Snapshot) -> torch.Tensor:
    """Returns what NC predicts of learners of some of the tasks, (B,)."""
    points = embedded.nc.points(embedded.context(rows), snapshot.H_tr, snapshot.H_te)
    return points.mean(dim=1)


def test_unlabelled_images_are_others_of_the_same_classes(
    config: FewShotConfig, tasks: HeldOut
) -> None:
    assert tasks[0].X_te.shape[:2] == tasks[1].shape[:2] == (4, 6)
    test, other = (X.flatten(2) for X in (tasks[0].X_te, tasks[1]))
    assert (torch.cdist(test, other) > 0).all()
    again = draw_held_out_tasks(replace(config, eval_tasks=4))
    assert torch.equal(again[0].X_tr, tasks[0].X_tr)


@pytest.mark.parametrize("head", ["posterior", "direct"])
def test_gaps_are_those_that_nc_predicts_of_the_images(tasks: HeldOut, head: str) -> None:
    embedded, task = make(tasks, head), tasks[0]
    H_tr, H_te = torch.randn(4, 3, 3), torch.randn(4, 6, 3)
    snapshot = Snapshot(task.X_tr, task.Y_tr, H_tr, task.X_te, H_te)
    rows = slice(1, 3)
    predicted = gaps(embedded, rows, snapshot[rows])
    torch.testing.assert_close(predicted, judge(embedded.nc, snapshot).gap[rows])
    other = EmbeddedTasks(embedded.nc, tasks, like=embedded)
    assert torch.equal(gaps(other, rows, snapshot[rows]), predicted)
    penalty = embedded.penalty(slice(0, 4))(lambda _: H_te, snapshot)  # type: ignore[arg-type]
    torch.testing.assert_close(penalty, judge(embedded.nc, snapshot).gap)


def test_inductive_regularizing_sees_the_other_images(tasks: HeldOut) -> None:
    embedded = make(tasks, "posterior")
    asked = []

    def h(X: torch.Tensor) -> torch.Tensor:
        asked.append(X)
        return torch.zeros(4, 6, 3)

    task = tasks[0]
    snapshot = Snapshot(task.X_tr, task.Y_tr, torch.zeros(4, 3, 3), task.X_te, torch.zeros(4, 6, 3))
    embedded.penalty(slice(0, 4), inductive=True)(h, snapshot)  # type: ignore[arg-type]
    assert torch.equal(asked[0], tasks[1])


def test_only_the_posterior_head_has_beliefs(tasks: HeldOut) -> None:
    ours, papers = make(tasks, "posterior"), make(tasks, "direct")
    assert papers.nc.head.belief(papers.context(slice(0, 2)).state) is None
    assert ours.beliefs().shape == ours.beliefs(alone=True).shape == (4, 6, 3)
    task = tasks[0]
    alone = ours.nc.belief(task.X_tr, task.Y_tr, task.X_te[:, 2:3])
    torch.testing.assert_close(ours.beliefs(alone=True)[:, 2:3], alone.prediction)


def test_what_ncs_predict_on_the_way_is_of_the_learners_at_that_step(
    config: FewShotConfig, tasks: HeldOut
) -> None:
    task, steps = tasks[0], 5
    recipe = replace(config, steps=steps, learner_width=8).recipe(task.X_tr.shape[2:])
    embedded = {head: make(tasks, head) for head in ("posterior", "direct")}
    found = train_and_predict(recipe, 0, embedded)
    assert found["loss_te"].shape == found["accuracy"].shape == (steps + 1, 4)
    assert not found["diverged"].any()
    seen: list[Snapshot] = []

    def observe(step: int, snapshot: Snapshot) -> None:
        if step in (0, 1, 2, 4, steps):
            seen.append(snapshot)

    recipe.train(task, stream(0, "evaluate learners", 0), observe=observe)
    for head, own in embedded.items():
        predicted = torch.stack([gaps(own, slice(0, 4), snapshot) for snapshot in seen])
        torch.testing.assert_close(found[f"predicted/{head}"], predicted)
    true = found["loss_te"] - found["loss_tr"]
    torch.testing.assert_close(found["gap"], true[[0, 1, 2, 4, steps]])
    regularized = train_and_predict(recipe, 0, embedded, embedded["direct"].penalty)
    assert torch.equal(regularized["loss_te"][0], found["loss_te"][0])
    assert not torch.equal(regularized["loss_te"][-1], found["loss_te"][-1])


TRAINING = LabelTraining(width=16, channels=4, iterations=2, updates=2, tasks=4, batch=4)


@pytest.fixture
def small(few_shot: FewShot) -> FewShotConfig:
    return FewShotConfig(ways=few_shot.ways, shots=few_shot.shots, queries=few_shot.queries)


def embed(few_shot: FewShot, task: Task) -> Any:
    """Held-out tasks as an untrained NC embeds them; its beliefs are the true labels."""
    nc = NeuralComplexity.for_tasks(
        task, loss=cross_entropy.name, width=16, heads=2, channels=4, image_layers=2
    )
    with torch.no_grad():
        E_tr, E_te = (nc.embed(values(X)) for X in (task.X_tr, task.X_te))
    logits = torch.nn.functional.one_hot(task.Y_te, few_shot.ways).double()
    return SimpleNamespace(
        nc=nc,
        task=task,
        embedded=[E_tr, E_te, E_te],
        beliefs=lambda alone=False: logits.flip(-1) if alone else logits,
    )


def test_accuracies_are_by_method_and_by_what_it_sees(
    few_shot: FewShot, small: FewShotConfig
) -> None:
    task = few_shot.sample(5, stream(0, "tasks")).loaded()
    state = small.train_prototypical(TRAINING, few_shot)
    found = without_learner(small, embed(few_shot, task), state)
    assert list(found) == [
        ("NC posterior, its beliefs", "transductive"),
        ("NC posterior, its beliefs one image at a time", "inductive"),
        ("nearest neighbour in where NC compares images", "inductive"),
        ("nearest neighbour in NC's image embedding", "inductive"),
        ("nearest neighbour in pixels", "inductive"),
        (PROTOTYPICAL, "inductive"),
        (f"{PROTOTYPICAL}, soft k-means", "transductive"),
    ]
    for right in found.values():
        assert right.shape == (5,)
        assert ((right >= 0) & (right <= 1)).all()
    right = found["NC posterior, its beliefs", "transductive"]
    assert right.tolist() == [1] * 5
    wrong = found["NC posterior, its beliefs one image at a time", "inductive"]
    assert wrong.tolist() == pytest.approx(
        [1 / 3] * 5
    )  # only the class in the middle stays where it is


def test_images_that_were_seen_are_classified_without_error(
    few_shot: FewShot, small: FewShotConfig
) -> None:
    drawn = few_shot.sample(5, stream(0, "tasks")).loaded()
    same = Task(drawn.X_tr, drawn.Y_tr, drawn.X_tr, drawn.Y_tr)
    found = without_learner(
        small, embed(few_shot, same), small.train_prototypical(TRAINING, few_shot)
    )
    for (method, _), right in found.items():
        if method in ("nearest neighbour in pixels", "nearest neighbour in NC's image embedding"):
            assert right.tolist() == [1] * 5


def test_the_prototypical_network_is_trained_and_the_same_every_time(
    few_shot: FewShot, small: FewShotConfig
) -> None:
    calls: list[tuple[str, int, int]] = []
    first = small.train_prototypical(
        TRAINING,
        few_shot,
        lambda stage, done, total, *_: calls.append((stage, done, total)),
    )
    again = small.train_prototypical(TRAINING, few_shot)
    assert all(torch.equal(again[name], tensor) for name, tensor in first.items())
    assert calls[-1] == ("prototypes", 4, 4)
    longer = LabelTraining(width=16, channels=4, iterations=3, updates=2, tasks=4, batch=4)
    other = small.train_prototypical(longer, few_shot)
    assert any(not torch.equal(other[name], tensor) for name, tensor in first.items())


def test_rounds_that_are_added_change_nothing_but_where_keys_are() -> None:
    options: dict[str, Any] = {"head": "direct", "loss": "cross_entropy", "metric": True}
    nc = NeuralComplexity(2, 3, vote=True, width=8, heads=2, **options)
    more = add_rounds(nc, 2)
    assert (more.architecture.rounds, nc.architecture.rounds) == (2, 0)
    for name, tensor in nc.state_dict().items():
        assert torch.equal(more.state_dict()[name], tensor)
    X_tr, Y_tr, X_te = torch.randn(2, 3, 2), torch.arange(3).expand(2, 3), torch.randn(2, 6, 2)
    H_tr, H_te = torch.randn(2, 3, 3), torch.randn(2, 6, 3)
    a, b, c = (n.predict(X_tr, Y_tr, H_tr, X_te, H_te) for n in (nc, more, add_rounds(nc, 0)))
    assert torch.equal(a, c)
    assert not torch.allclose(a, b)
