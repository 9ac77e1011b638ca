"""Few-shot classification of Omniglot: data, learners, NCs for it, held-out tasks, baselines."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Annotated, Any, Literal, Self

import torch
from torch import Tensor

from neural_complexity import ledger
from neural_complexity.baselines import trained
from neural_complexity.experiments.base.config import POSITIVE, AtLeast, BaseConfig, Between, Count
from neural_complexity.experiments.base.training import Training
from neural_complexity.learners.fit import Recipe, Regularizer, train_learners
from neural_complexity.learners.networks import image_cnn, image_mlp
from neural_complexity.losses import cross_entropy, zero_one
from neural_complexity.meta.trainer import MetaTraining
from neural_complexity.model.encoders import ImageEncoder
from neural_complexity.model.heads import HEADS
from neural_complexity.model.network import Context, NeuralComplexity
from neural_complexity.points import values
from neural_complexity.progress import ProgressCallback
from neural_complexity.regularizers.nc import nc_penalty
from neural_complexity.seeding import seeded, stream
from neural_complexity.snapshot import Snapshot, gap
from neural_complexity.task import Task
from neural_complexity.tasks.images import FewShot
from neural_complexity.tasks.omniglot_files import omniglot

__all__ = ["OURS", "PAPERS", "PAPERS_LEARNERS", "PAPER_ACCURACY", "PROTOTYPICAL", "SMOKE", "TINY"]
__all__ += ["EmbeddedTasks", "FewShotConfig", "HeldOut", "LabelTraining", "add_rounds", "direct"]
__all__ += ["draw_held_out_tasks", "posterior", "train_and_predict", "without_learner"]

_encoder: Callable[..., ImageEncoder] = partial(ImageEncoder, layers=4)  # of prototypical networks
Penalty = Callable[[slice], Regularizer]  # of some of the tasks
HeldOut = tuple[Task, Tensor]  # and unlabelled images of their classes, (B, N, channels, H, W)
PART = 64  # tasks whose images are embedded at a time: bounds memory
PROTOTYPICAL = "prototypical network"
PAPER_ACCURACY = 92.93  # of MLP learners with NC, 10 ways, 1 shot
# Sizes of smoke runs, and of NCs in them.
SMOKE: dict[str, Any] = {"ways": 4, "queries": 2, "eval_tasks": 16, "learner_width": 16, "steps": 6}
TINY: dict[str, Any] = {"width": 16, "heads": 2, "channels": 8, "iterations": 2, "tasks": 8}
TINY |= {"validation_tasks": 8, "updates": 4}
PAPERS_LEARNERS: dict[str, Any] = {"learner_width": 500, "lr": 0.01, "steps": 2000}


@dataclass(frozen=True, kw_only=True)
class LabelTraining(Training):
    """An NC for images and labels; the defaults are the paper's for MLP learners (appendix C)."""

    width: Count = 120  # Width d of every layer of NC behind the image encoder.
    heads: Count = 4  # Attention heads (the paper does not say).
    encoder_layers: Count = 1  # n_enc.
    batch: Count = 16  # Bank rows per NC update, bs.
    pool_first: bool = False  # Direct head: whether test points are averaged before decoding.
    scale_by_width: bool = False  # Whether attention divides by the root of the whole width.
    validation_tasks: Count = 64  # Other tasks, on whose learners NC is scored on its way.
    channels: Count = 64  # Filters of each layer of the image encoder.
    self_layers: Annotated[int, AtLeast(0)] = 1  # n_self.
    bilinear: bool = True  # Whether targets act through the interaction layer of Eq. (9).
    bias: bool = True  # Whether the interaction layer has its 1.
    loss_conditioning: bool = True  # Direct head: whether that layer sees the training losses.
    symmetric: bool = False  # Whether classes are treated alike.
    metric: bool = False  # Whether attention goes by distance.
    rounds: Annotated[int, AtLeast(0)] = 0  # Rounds of soft k-means on the unlabelled points.
    later_rounds: Annotated[int, AtLeast(0)] = 0  # Rounds that are added once NC is trained.
    vote: bool = False  # Whether the decoder corrects, or beside h sees, the attention on labels.
    criterion: Literal["huber", "squared"] = "huber"  # NC's loss on the gap.
    made_up: Annotated[float, Between(0, 1)] = 0.0  # The share of pseudo-predictions in a batch.
    run: Count = 1  # Rows of one task that are drawn together.

    def learning(self) -> dict[str, Any]:
        """Returns the fields of `MetaTraining`."""
        return super().learning() | {"pseudo_predictions": self.made_up}


def add_rounds(nc: NeuralComplexity, rounds: int) -> NeuralComplexity:
    """Returns an NC with further rounds of soft k-means, which have no weights of their own."""
    more = replace(nc.architecture, rounds=nc.architecture.rounds + rounds)
    other = NeuralComplexity(**asdict(more)).to(nc.device)
    other.load_state_dict(nc.state_dict())
    other.card = nc.card
    return other


PAPERS = LabelTraining()
# What we found to work: how NC is taught, by which rates, and on how much.
OURS: dict[str, Any] = {"observed_loss": True, "supervision": "point", "spread_weights": True}
OURS |= {"made_up": 0.5, "warmup": 0.03, "decay": True, "lr": 0.002, "query_skip": True}
OURS |= {"tasks": 64, "updates": 16, "capacity": 50_000}
OURS_BY_HEAD = {head: {**OURS, **HEADS[head].for_labels} for head in ("posterior", "direct")}
OURS_BY_HEAD["posterior"] |= {"belief_weight": 1.0, "self_layers": 0, "batch": 10}
OURS_BY_HEAD["direct"] |= {"batch": 48, "run": 4}
posterior, direct = (partial(LabelTraining, **own) for own in OURS_BY_HEAD.values())  # at any size


@dataclass(frozen=True, kw_only=True)
class FewShotConfig(BaseConfig):
    """Few-shot classification of Omniglot's characters."""

    data: str = ""  # The folder of Omniglot's zips; if empty, NEURAL_COMPLEXITY_DATA or a cache.
    ways: Count = 10  # Classes of a task.
    shots: Count = 1  # Training images of each class.
    queries: Count = 5  # Test images of each class.
    train_queries: Count = 4  # Test images of each class in meta-training.
    eval_tasks: Annotated[int, AtLeast(2)] = 512  # Held-out tasks.
    learner_width: Count = 64  # Hidden units of the learner (the paper: one hidden layer of 500).
    learner_channels: Count = 16  # Filters of each of the two layers of convolutional learners.
    steps: Count = 50  # Updates of the learner (the paper does not say).
    lr: Annotated[float, POSITIVE] = 0.5  # Learning rate of the learner (SGD; the paper: 0.01).
    cnn_lr: Annotated[float, POSITIVE] = 0.2  # Learning rate of convolutional learners.

    def train_family(self) -> FewShot:
        """Returns tasks of background characters and their rotations."""
        images = omniglot("background", folder=self.data or None).rotated()
        return FewShot(images, ways=self.ways, shots=self.shots, queries=self.train_queries)

    def recipe(self, shape: Sequence[int], kind: str = "MLP") -> Recipe:
        """Returns how learners of images of a shape learn, `"MLP"` or `"CNN"`."""
        make, lr = partial(image_mlp, shape, [self.learner_width], self.ways), self.lr
        if kind == "CNN":
            channels = [self.learner_channels] * 2
            make, lr = partial(image_cnn, shape, channels, self.ways), self.cnn_lr
        return Recipe(make=make, loss=cross_entropy, steps=self.steps, lr=lr)

    def train_prototypical(
        self, training: LabelTraining, family: FewShot, callback: ProgressCallback | None = None
    ) -> dict[str, Tensor]:
        """Returns the state of a prototypical network's encoder, trained on NC's episodes."""
        with seeded(self.seed, "prototypes"):
            encoder = _encoder(family.images.pixels.shape[1:], channels=training.channels)
        units = family.sample(128, stream(self.seed, "units"))
        encoder.to(self.device).calibrate(values(units.X_tr).to(self.device))
        own: Any = {"seed": self.seed, "classes": self.ways, "callback": callback}
        trained.train_prototypes(encoder, family, MetaTraining(**training.learning()), **own)
        return encoder.state_dict()


def draw_held_out_tasks(config: FewShotConfig) -> HeldOut:
    """Draws tasks of evaluation characters; half of their test images become unlabelled."""
    images = omniglot("evaluation", folder=config.data or None)
    family = FewShot(images, ways=config.ways, shots=config.shots, queries=2 * config.queries)
    task = family.sample(config.eval_tasks, stream(config.seed, "evaluation tasks"))
    task = task.to(config.device).loaded()
    N = config.ways * config.queries
    return replace(task, X_te=task.X_te[:, :N], Y_te=task.Y_te[:, :N]), task.X_te[:, N:]


class EmbeddedTasks:
    """Held-out tasks whose images an NC, or one with the same encoder (`like`), embedded once."""

    def __init__(self, nc: NeuralComplexity, tasks: HeldOut, like: Self | None = None) -> None:
        self.nc, (self.task, self.X_unlabelled) = nc, tasks
        self._contexts: dict[tuple[int, int, bool], Context] = {}
        self.ways = int(self.task.Y_tr.max()) + 1
        sets = (self.task.X_tr, self.task.X_te, self.X_unlabelled) if like is None else ()
        with torch.no_grad():
            embedded = [torch.cat([nc.embed(x) for x in X.split(PART)]) for X in sets]
        self.embedded: list[Tensor] = embedded if like is None else like.embedded

    @torch.no_grad()
    def context(self, rows: slice, *, inductive: bool = False) -> Context:
        """Returns NC's context of some of the tasks, which does not depend on h."""
        key = (rows.start, rows.stop, inductive)
        if key not in self._contexts:
            E_tr, E_te = (self.embedded[i][rows] for i in (0, 2 if inductive else 1))
            Y_tr = self.task.Y_tr[rows]
            self._contexts[key] = self.nc.context(E_tr, Y_tr, E_te, classes=self.ways)
        return self._contexts[key]

    def penalty(self, rows: slice, *, inductive: bool = False) -> Regularizer:
        """Returns the paper's regularizer for some of the tasks."""
        X = self.X_unlabelled[rows] if inductive else None
        context, task = self.context(rows, inductive=inductive), self.task[rows]
        return nc_penalty(self.nc, task, safeguard=False, X_unlabelled=X, context=context)

    @torch.no_grad()
    def beliefs(self, *, alone: bool = False) -> Tensor:
        """Returns beliefs about test labels, of images perhaps seen alone, as logits, (B, N, C)."""
        if not alone:
            return self.nc.believe(self.context(slice(0, len(self.task)))).prediction
        N, parts = self.task.X_te.shape[1], []
        for rows in torch.arange(len(self.task)).split(PART):
            # (part N, M, ...), and (part N, 1, features).
            train = (self.embedded[0], self.task.Y_tr)
            E_tr, Y_tr = (tensor[rows].repeat_interleave(N, dim=0) for tensor in train)
            E_te = self.embedded[1][rows].flatten(0, 1).unsqueeze(1)
            context = self.nc.context(E_tr, Y_tr, E_te, classes=self.ways)
            seen = self.nc.believe(context).prediction
            parts.append(seen.view(len(rows), N, -1))
        return torch.cat(parts)


def train_and_predict(
    recipe: Recipe, seed: int, embedded: Mapping[str, EmbeddedTasks], penalty: Penalty | None = None
) -> dict[str, Tensor]:
    """Trains one learner per task and lets NCs, by name, judge it on the way.

    Returns losses and accuracies after each step, (steps + 1, B), predictions and gaps at snapshot
    times, (times, B), and who diverged, (1, B).
    """
    task = next(iter(embedded.values())).task
    snapshot_times = {0, recipe.steps, *(2**k for k in range(20) if 2**k < recipe.steps)}
    seen: dict[str, dict[int, list[Tensor]]] = {}

    @torch.no_grad()
    def observe(rows: slice, step: int, snapshot: Snapshot) -> None:
        part = task[rows]
        found = {"accuracy": 1 - zero_one(snapshot.H_te, part.Y_te).mean(dim=1)}
        if step in snapshot_times:
            found["gap"] = gap(recipe.loss, snapshot, part.Y_te)
            for name, tasks in embedded.items():
                nc, context = tasks.nc, tasks.context(rows)
                points = nc.points(context, snapshot.H_tr, snapshot.H_te)
                found[f"predicted/{name}"] = points.mean(dim=1)
                belief = nc.head.belief(context.state)
                if belief is not None:
                    wrong = zero_one.expected(snapshot.H_te, belief)
                    found["predicted accuracy"] = 1 - wrong.mean(dim=1)
        for name, chunk in found.items():
            seen.setdefault(name, {}).setdefault(step, []).append(chunk)

    trained = train_learners(recipe, task, seed=seed, penalty=penalty, observe=observe)
    curves = {"loss_tr": trained.loss_tr, "loss_te": trained.loss_te}
    for name, by_step in seen.items():
        curves[name] = torch.stack([torch.cat(chunks) for chunks in by_step.values()])
    return {**curves, "diverged": trained.diverged.unsqueeze(0)}


@torch.no_grad()
def without_learner(
    config: FewShotConfig, embedded: EmbeddedTasks, state: dict[str, Tensor]
) -> dict[tuple[str, str], Tensor]:
    """Returns accuracies without a learner, (B,), by method and by what it sees of test images.

    `state` is that of a prototypical network, or empty if there is none.
    """
    task, place = embedded.task, embedded.nc.head.network.place
    E_tr, E_te, _ = embedded.embedded
    found = {("NC posterior, its beliefs", "transductive"): embedded.beliefs()}
    one = "NC posterior, its beliefs one image at a time"
    found[one, "inductive"] = embedded.beliefs(alone=True)
    for space, K, Q in (
        ("where NC compares images", place(E_tr), place(E_te)),
        ("NC's image embedding", E_tr, E_te),
        ("pixels", task.X_tr.flatten(2), task.X_te.flatten(2)),
    ):
        logits = trained.nearest_neighbour_logits(K, task.Y_tr, Q, classes=config.ways)
        found[f"nearest neighbour in {space}", "inductive"] = logits
    if state:
        encoder = _encoder(task.X_tr.shape[2:], channels=state["blocks.0.filters"].shape[0])
        encoder.load_state_dict(state)
        encoder = encoder.to(config.device)
        own = partial(trained.prototype_logits, encoder, classes=config.ways)
        parts = [task[i : i + PART] for i in range(0, len(task), PART)]
        soft = (f"{PROTOTYPICAL}, soft k-means", "transductive")
        for key, rounds in (((PROTOTYPICAL, "inductive"), 0), (soft, 3)):
            found[key] = torch.cat([own(part, rounds=rounds) for part in parts])
    ledger.record("report", task.X_te, task.Y_te)
    return {key: 1 - zero_one(logits, task.Y_te).mean(dim=1) for key, logits in found.items()}
