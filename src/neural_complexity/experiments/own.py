"""Own data: what `meta_learn`, `assess` and the regularizer do for somebody's own dataset."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.optim import Adam

from neural_complexity.convert.predictions import columns_of, in_order, predict
from neural_complexity.experiments.base.configs import Basics, check_least
from neural_complexity.experiments.base.outcome import Outcome
from neural_complexity.experiments.base.pieces import Pieces
from neural_complexity.experiments.base.rows import Row, score_row
from neural_complexity.integrations.sklearn import NCClassifier
from neural_complexity.learners.networks import image_cnn, mlp
from neural_complexity.learners.recipe import Recipe
from neural_complexity.losses import cross_entropy
from neural_complexity.meta.meta_learn import meta_learn
from neural_complexity.meta.plan import Plan, seconds
from neural_complexity.meta.scores import (
    correlation,
    estimate,
    estimate_mean,
    estimate_over_seeds,
    mean_absolute_error,
    r_squared,
)
from neural_complexity.model.network import NeuralComplexity
from neural_complexity.progress import Tell
from neural_complexity.regularizers.loop import NCRegularizer
from neural_complexity.seeding import seeded, stream
from neural_complexity.task import Task
from neural_complexity.tasks.split_tasks import own_digits, split_tasks
from neural_complexity.tasks.splits import Minibatches

__all__ = ["KINDS", "METHODS", "NAME", "PRESETS", "Config", "cpu", "paper", "run", "smoke"]

NAME = "own"
SMALLEST = 50  # training points of a learner
FEWEST_STEPS = 30  # of a network
PLAIN, TRANSDUCTIVE, INDUCTIVE = "NCClassifier, no NC", "transductive", "inductive"
LOOP, PENALTY = "a plain loop", "with NCRegularizer"
# Ways to train a model, and what each is compared with.
METHODS = {PLAIN: None, TRANSDUCTIVE: PLAIN, INDUCTIVE: PLAIN, LOOP: None, PENALTY: LOOP}
BATCH = 32  # points of a step
TOLD = ("predicted", "true", "loss_tr", "low", "high", "p")  # of each model
CLASSES, TRAIN = 10, 1437
STRANGE = 0.05  # models with a p-value up to this are told to be unlike those calibrated on
Array = NDArray[Any]

# Learners that NC was not trained on, which were MLPs with one layer of 64: networks, by how they
# are made of classes, and models of scikit-learn, by how they are made of a seed.
NETWORKS: dict[str, Callable[[int], nn.Module]] = {
    "linear": lambda classes: mlp(64, (), classes),
    "MLP of 16": lambda classes: mlp(64, (16,), classes),
    "MLP of 512": lambda classes: mlp(64, (512,), classes),
    "MLP of 64, 64, 64": lambda classes: mlp(64, (64, 64, 64), classes),
    "tanh MLP": lambda classes: mlp(64, (100,), classes, activation=nn.Tanh),
    "MLP with dropout": lambda classes: mlp(64, (256,), classes, noise=lambda _: nn.Dropout(0.5)),
    "CNN": lambda classes: nn.Sequential(
        nn.Unflatten(1, (1, 8, 8)), image_cnn((1, 8, 8), (16, 32), classes)
    ),
}


def _forest(seed: int) -> Any:
    from sklearn.ensemble import RandomForestClassifier

    return RandomForestClassifier(100, random_state=seed)


def _neighbours(seed: int) -> Any:
    from sklearn.neighbors import KNeighborsClassifier

    return KNeighborsClassifier(3 + seed % 15)


def _logistic(seed: int) -> Any:
    from sklearn.linear_model import LogisticRegression

    return LogisticRegression(C=10.0 ** (seed % 5 - 2), max_iter=500)


ESTIMATORS: dict[str, Callable[[int], Any]] = {
    "random forest": _forest,
    "nearest neighbours": _neighbours,
    "logistic regression": _logistic,
}
KINDS = (*NETWORKS, *ESTIMATORS)


@dataclass(frozen=True, kw_only=True)
class Config(Basics):
    """Scikit-learn's digits as somebody's own data, of which some points never reach NC."""

    budget: str = "5min"
    """The time for meta-learning; or PLAN, as in "8x20": iterations and updates."""
    learner_steps: int = 300
    """Updates of the learners that NC learns from."""
    eval_tasks: int = 16
    """Learners of each kind that NC is asked about."""
    longest: int = 1000
    """The most updates of these; each network draws its own number."""
    runs: int = 20
    """Seeds with and without the regularizer."""
    sizes: tuple[int, ...] = (100, 400, 800, TRAIN)
    """Training points of the regularized models."""
    steps: int = 500
    """Updates of the regularized models."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_least(self, 2, "runs")
        check_least(self, 1, "steps", "learner_steps")
        check_least(self, FEWEST_STEPS, "longest")
        _budget(self.budget)
        if not self.sizes or not all(SMALLEST <= size <= TRAIN for size in self.sizes):
            raise ValueError(f"sizes must be from {SMALLEST} to {TRAIN}, got {self.sizes}")


def cpu() -> Config:
    """Minutes on two cores."""
    return Config()


def paper() -> Config:
    """The paper has no such experiment; this is a longer look."""
    return Config(budget="30min", eval_tasks=64)


def smoke() -> Config:
    """Seconds; what CI runs."""
    return Config(budget="2x2", learner_steps=10, eval_tasks=2, runs=2, sizes=(50,), steps=5)


PRESETS: dict[str, Callable[[], Config]] = {"smoke": smoke, "cpu": cpu, "paper": paper}


def run(config: Config, *, folder: Path | None = None, tell: Tell | None = None) -> Outcome:
    """Meta-learns an NC of digits, asks it about models it has not seen, and regularizes with it.

    Args:
        config: The settings.
        folder: Where unfinished work is kept, so that the same call goes on after an interruption.
        tell: Told about the progress.
    """
    X, y, X_te, y_te = own_digits()
    nc = meta_learn(
        split_tasks(X, y),
        _recipe(partial(mlp, X.shape[1], (64,), CLASSES), config.learner_steps),
        budget=_budget(config.budget),
        seed=config.seed,
        device=config.device,
        folder=None if folder is None else folder / "nc",
        progress=False,
        tell=tell,
    )
    pieces = Pieces(len(KINDS) + len(config.sizes) * len(METHODS), config, folder, tell)
    asked = {
        kind: pieces.do(kind, partial(_ask, config, nc, kind, (X, y, X_te, y_te))) for kind in KINDS
    }
    rows = _rows_of_gaps(config, asked)
    for size in config.sizes:
        results = {
            method: pieces.do(
                f"{size} points, {method}",
                partial(_regularize, config, nc, method, size, (X, y, X_te, y_te)),
            )
            for method in METHODS
        }
        rows += _rows_of_accuracy(config, size, results)
    tensors = {f"{name}/{kind}": t for kind, told in asked.items() for name, t in told.items()}
    made = {name: nc.provenance[name] for name in ("plan", "report", "belief_loss", "seconds")}
    spent = {name: round(s, 2) for name, s in pieces.seconds.items()}
    return Outcome(rows, tensors, {"digits": nc}, {}, {"made": made, "seconds": spent})


def _budget(text: str) -> float | Plan:
    """Reads a time, or a plan such as "8x20", which is the same work everywhere."""
    iterations, _, updates = text.partition("x")
    if iterations.isdigit() and updates.isdigit():
        return Plan(iterations=int(iterations), updates=int(updates), learners=40, chosen_by=8)
    return seconds(text)


Data = tuple[Array, Array, Array, Array]


def _ask(config: Config, nc: NeuralComplexity, kind: str, data: Data) -> dict[str, Tensor]:
    """Assesses models of a kind, and compares with their true gap."""
    X, y, X_te, y_te = data
    told: dict[str, list[float]] = {name: [] for name in TOLD}
    for index in range(config.eval_tasks):
        generator = stream(config.seed, "own learners", kind, index)
        share = torch.rand((), generator=generator).item()
        m = round(SMALLEST * (len(X) / SMALLEST) ** share)
        rows = torch.randperm(len(X), generator=generator)[:m].numpy()
        model = _fitted(kind, X[rows], y[rows], generator, index, config.longest)
        found = nc.assess(model, X[rows], y[rows], X_te)
        H = _predictions(model, X_te, nc.x_mean)
        labels = torch.from_numpy(y_te).to(H.device)
        true = cross_entropy(H[None], labels[None]).mean().item()
        told["predicted"].append(found.gap)
        told["true"].append(true - found.loss_tr)
        told["loss_tr"].append(found.loss_tr)
        interval = found.bound
        told["low"].append(-torch.inf if interval is None else interval.low)
        told["high"].append(torch.inf if interval is None else interval.high)
        told["p"].append(1.0 if found.unlike is None else found.unlike.p_value)
    return {name: torch.tensor(values, dtype=torch.float64) for name, values in told.items()}


def _fitted(
    kind: str, X: Array, y: Array, generator: torch.Generator, index: int, longest: int
) -> Any:
    if kind in ESTIMATORS:
        return ESTIMATORS[kind](index).fit(X, y)
    low, high = FEWEST_STEPS, longest
    steps = round(low * (high / low) ** torch.rand((), generator=generator).item())
    recipe = _recipe(partial(NETWORKS[kind], CLASSES), steps)
    dtype = torch.get_default_dtype()
    x, labels = torch.from_numpy(X).to(dtype)[None], torch.from_numpy(y)[None]
    task = Task(x, labels, x[:, :1], labels[:, :1])
    batches = Minibatches(task, M=BATCH, N=1, seed=index)
    return recipe.train(batches, generator).one(0)


def _recipe(make: Callable[[], nn.Module], steps: int) -> Recipe:
    adam = partial(Adam, fused=True)
    return Recipe(make=make, loss=cross_entropy, steps=steps, lr=0.003, optimizer=adam)


def _predictions(model: Any, X: Array, like: Tensor) -> Tensor:
    H = predict("X_te", model, X, labels=True, like=like)
    columns = columns_of(model)
    return H if columns is None else in_order("predictions", H, columns, range(CLASSES))


def _regularize(
    config: Config, nc: NeuralComplexity, method: str, size: int, data: Data
) -> dict[str, Tensor]:
    """Trains models that differ by their method alone from those of the same seeds."""
    X, y, X_te, y_te = data
    used = None if METHODS[method] is None else nc
    scores = []
    for seed in range(config.runs):
        rows = torch.randperm(len(X), generator=stream(seed, "own rows"))[:size].numpy()
        if method in (LOOP, PENALTY):
            with seeded(seed, "own loop"):
                guesses = _loop(config.steps, used, X[rows], y[rows], X_te)
            scores.append(100 * (guesses == y_te).mean())
        else:
            model = NCClassifier(used, steps=config.steps, batch=BATCH, random_state=seed)
            model.fit(X[rows], y[rows], X_unlabelled=X_te if method == TRANSDUCTIVE else None)
            scores.append(100 * model.score(X_te, y_te))
    return {"accuracy": torch.tensor(scores, dtype=torch.float64)}


def _loop(steps: int, nc: NeuralComplexity | None, X: Array, y: Array, X_te: Array) -> Array:
    """Trains a network as everybody does, perhaps with one more term, and gives its labels."""
    device = None if nc is None else nc.x_mean.device
    x, x_te = (torch.tensor(points, dtype=torch.float32, device=device) for points in (X, X_te))
    t = torch.tensor(y, device=device)
    penalty = None if nc is None else NCRegularizer(nc, X_tr=x, y_tr=t)
    model = mlp(X.shape[1], (64,), CLASSES).to(x)
    optimizer = Adam(model.parameters(), lr=0.003)
    for _ in range(steps):
        some, others = (torch.randint(len(points), (BATCH,)) for points in (x, x_te))
        loss = nn.functional.cross_entropy(model(x[some]), t[some])
        if penalty is not None:
            loss = loss + penalty(model, x[some], t[some], x_te[others])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    with torch.no_grad():
        guesses: Array = model(x_te).argmax(dim=1).cpu().numpy()
    return guesses


def _rows_of_gaps(config: Config, asked: dict[str, dict[str, Tensor]]) -> list[Row]:
    every = {name: torch.cat([told[name] for told in asked.values()]) for name in TOLD}
    rows = []
    for kind, told in {"all kinds": every, **asked}.items():
        row = partial(score_row, NAME, config.seed, "NC", kind)
        predicted, true = told["predicted"], told["true"]
        rows.append(row("R2", estimate(r_squared, predicted, true)))
        rows.append(row("correlation", estimate(correlation, predicted, true)))
        rows.append(row("MAE", estimate(mean_absolute_error, predicted, true)))
        rows.append(row("true gap", estimate_mean(true)))
        inside = (told["low"] <= true) & (true <= told["high"])
        rows.append(row("inside the bound", estimate_mean(inside.double())))
        rows.append(row("told to be unlike", estimate_mean((told["p"] <= STRANGE).double())))
        width = told["high"] - told["low"]
        if width.isfinite().all():
            rows.append(row("width of the bound", estimate_mean(width)))
    return rows


def _rows_of_accuracy(
    config: Config, size: int, results: dict[str, dict[str, Tensor]]
) -> list[Row]:
    rows = []
    for method, result in results.items():
        row = partial(score_row, NAME, config.seed, method, f"{size} training points")
        rows.append(row("accuracy", estimate_over_seeds(result["accuracy"])))
        other = METHODS[method]
        if other is not None:
            change = result["accuracy"] - results[other]["accuracy"]
            rows.append(row("change", estimate_over_seeds(change)))
    return rows
