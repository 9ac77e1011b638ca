"""Proposition 1 and tighter bounds: do they hold, how wide are they, when do they not apply."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn

from neural_complexity.experiments.base.comparison import sinusoid_recipe
from neural_complexity.experiments.base.configs import AsksNetworks, check_least
from neural_complexity.experiments.base.networks import how_made, load_networks
from neural_complexity.experiments.base.outcome import Outcome
from neural_complexity.experiments.base.pieces import Pieces
from neural_complexity.experiments.base.rows import Row, score_row
from neural_complexity.experiments.harm import family
from neural_complexity.learners.networks import mlp
from neural_complexity.learners.recipe import Recipe
from neural_complexity.losses import cross_entropy
from neural_complexity.meta.evaluate import follow
from neural_complexity.meta.scores import estimate_mean
from neural_complexity.model.judgement import measure
from neural_complexity.model.network import NeuralComplexity
from neural_complexity.model.pretrained_files import find_nc
from neural_complexity.progress import Tell
from neural_complexity.reliability.bounds import METHODS, PAC, Method, margin
from neural_complexity.reliability.calibration import Calibration
from neural_complexity.reliability.shift import likeness
from neural_complexity.seeding import stream
from neural_complexity.snapshot import Snapshot
from neural_complexity.task import Task
from neural_complexity.tasks.sinusoids import Sinusoids
from neural_complexity.tasks.split_tasks import Points, own_digits
from neural_complexity.tasks.splits import Splits

__all__ = [
    "ALARM",
    "CONFIDENCES",
    "DELTA",
    "DIGITS",
    "LIKE",
    "MEAN",
    "NAME",
    "PRESETS",
    "SINUSOIDS",
    "Config",
    "cpu",
    "paper",
    "run",
    "smoke",
]

NAME = "bounds"
CONFIDENCES = (0.8, 0.9, 0.95)
DELTA = 0.05  # the share of calibration sets for which the bounds that say so may fail
ALARM = 0.05  # a learner with a smaller p-value is taken to be unlike those calibrated on
MEAN = "mean gap"  # the trivial predictor
LIKE = "like those calibrated on"
DRAWN = 500  # draws at a time: bounds memory
NEW = 8  # new learners for each calibration set, where they must be drawn
MOVED = 5.0  # how far inputs of sinusoids are moved
LONGER = 16  # times as many steps
WRONG = 0.3  # the share of training labels that are made wrong
FIELDS = ("predicted", "true", "spread", "features")
LONG = f"{LONGER} times the steps"
FAMILIES = ("Gaussian processes", "step functions", "polynomials")
SINUSOIDS = (LIKE, LONG, "inputs moved", "test inputs from one end", *FAMILIES)
DIGITS = (LIKE, LONG, "pixels inverted", "wrong training labels")
PART = 512  # learners trained at a time: bounds memory

Learners = tuple[Snapshot, Tensor]  # with their test targets


@dataclass(frozen=True, kw_only=True)
class Config(AsksNetworks):
    """Coverage and width of bounds, and how unlike learners are told."""

    calibration: int = 700
    """Learners of a calibration set; the DKW bound needs 600 for a confidence of 0.95."""
    draws: int = 10_000
    """Calibration sets."""
    unlike: int = 1024
    """Learners of each kind that is unlike those calibrated on."""
    nc: str = ""
    """The file of an NC for scikit-learn's digits that knows the training part of
    `tasks.own.own_digits` only, as the run `own` leaves it; the shipped one if empty."""
    digits_tasks: int = 2048
    """Held-out tasks of digits."""
    digits_train: int = 100
    """Training images of each."""
    digits_test: int = 100
    """Test images of each."""
    digits_steps: int = 50
    """Updates of the learners of digits."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_least(self, 2, "calibration", "draws", "unlike")
        check_least(self, 1, "digits_train", "digits_test", "digits_steps")
        for name in ("eval_tasks", "digits_tasks"):
            if getattr(self, name) < 2 * self.calibration:
                raise ValueError(
                    f"{name} must be at least twice the calibration, {2 * self.calibration}, got "
                    f"{getattr(self, name)}"
                )


def paper() -> Config:
    """As many learners as other experiments have; the paper has no such experiment."""
    return Config()


def cpu() -> Config:
    """Minutes on one core."""
    return Config(eval_tasks=4096, unlike=256)


def smoke() -> Config:
    """Seconds; what CI runs."""
    return Config(eval_tasks=256, digits_tasks=256, calibration=100, draws=1000, unlike=32)


PRESETS: dict[str, Callable[[], Config]] = {"smoke": smoke, "cpu": cpu, "paper": paper}


def run(config: Config, *, folder: Path | None = None, tell: Tell | None = None) -> Outcome:
    """Trains learners, draws calibration sets from them, and counts how often bounds hold.

    Args:
        config: The settings.
        folder: Where finished parts are kept, so that the same call goes on after an interruption.
        tell: Told about the progress.
    """
    networks = load_networks(config.networks, config.device)
    named = {f"NC {head}": nc for head, nc in networks.items()}
    domains = [_Domain("sinusoids", SINUSOIDS, partial(_sinusoids, config), named)]
    nc = find_nc(config.nc or "digits")
    nc, make = nc.to(config.device), partial(_digits, config, _check_inputs(nc))
    domains.append(_Domain("digits", DIGITS, make, {f"NC {nc.architecture['head']}": nc}))
    pieces = Pieces(sum(len(d.kinds) + len(d.ncs) for d in domains), config, folder, tell)
    rows: list[Row] = []
    for domain in domains:
        work = {kind: partial(_measure, config, domain, kind) for kind in domain.kinds}
        found = {kind: pieces.do(f"{domain.name}: {kind}", do) for kind, do in work.items()}
        for name in domain.ncs:
            known = {kind: _of(name, tensors) for kind, tensors in found.items()}
            draw = partial(_draw, config, known[LIKE])
            drawn = pieces.do(f"{domain.name}: bounds of {name}", draw)
            predictors = (
                {"NC": name, MEAN: MEAN} if name == next(iter(domain.ncs)) else {"NC": name}
            )
            rows += _bound_rows(config, domain.name, predictors, drawn)
            rows += _likeness_rows(config, domain.name, name, known)
    facts = how_made(networks, pieces) | {"digits": config.nc or "the shipped NC"}
    return Outcome(rows, {}, facts=facts)


@dataclass(frozen=True)
class _Domain:
    """Learners to calibrate on, others that are unlike them, and who is asked about them."""

    name: str
    kinds: tuple[str, ...]  # the first are those to calibrate on
    make: Callable[[str, int, torch.Generator], Learners]  # so many of a kind
    ncs: dict[str, NeuralComplexity]


def _sinusoids(config: Config, kind: str, count: int, generator: torch.Generator) -> Learners:
    """Trains learners of sinusoids as NC knows them, or others."""
    tasks = family(kind, held_out=True) if kind in FAMILIES else Sinusoids()
    steps = sinusoid_recipe().steps * (LONGER if kind == LONG else 1)
    s, Y_te = _train(sinusoid_recipe(steps=steps), tasks.sample(count, generator), config)
    if kind == "inputs moved":
        s = Snapshot(s.X_tr + MOVED, s.Y_tr, s.H_tr, s.X_te + MOVED, s.H_te)
    if kind == "test inputs from one end":
        end = s.X_te.argsort(dim=1)[:, s.X_te.shape[1] // 2 :]  # (B, N / 2, 1)
        X_te, H_te, Y_te = (t.gather(1, end) for t in (s.X_te, s.H_te, Y_te))
        s = Snapshot(s.X_tr, s.Y_tr, s.H_tr, X_te, H_te)
    return s, Y_te


def _digits(
    config: Config, shape: tuple[int, ...], kind: str, count: int, generator: torch.Generator
) -> Learners:
    """Trains small networks on few digits, of those that are for testing."""
    _, _, X, y = own_digits()
    M, N = config.digits_train, config.digits_test
    values = torch.from_numpy(X).to(torch.get_default_dtype()).view(-1, *shape)
    labels = torch.from_numpy(y)
    points = Points(values, labels, tuple(range(10)))
    numbers = Splits(points, torch.arange(len(y)), train=M, test=N, M=M, N=N).draw(count, generator)
    if kind == "pixels inverted":
        values = 1 - values
    Y_tr = numbers.Y_tr
    if kind == "wrong training labels":
        other = torch.randint(1, 10, Y_tr.shape, generator=generator)
        wrong = torch.rand(Y_tr.shape, generator=generator) < WRONG
        Y_tr = torch.where(wrong, (Y_tr + other) % 10, Y_tr)
    task = Task(values[numbers.X_tr], Y_tr, values[numbers.X_te], numbers.Y_te)
    steps = config.digits_steps * (LONGER if kind == LONG else 1)
    return _train(Recipe(make=_network, loss=cross_entropy, steps=steps, lr=0.5), task, config)


def _network() -> nn.Module:
    return nn.Sequential(nn.Flatten(), mlp(64, (32,), 10))


def _check_inputs(nc: NeuralComplexity) -> tuple[int, ...]:
    if not nc.labels or math.prod(nc.shape) != 64 or (nc.outputs != 10 and not nc.symmetric):
        raise ValueError(
            f"nc must be for 10 classes of digits with 64 pixels, got one for {nc.outputs} outputs,"
            f" {nc.loss.name} and inputs {nc.shape}"
        )
    return nc.shape


def _train(recipe: Recipe, task: Task, config: Config) -> Learners:
    task = task.to(config.device)
    return follow(recipe, task, seed=config.seed).end.detach(), task.Y_te


def _measure(config: Config, domain: _Domain, kind: str) -> dict[str, Tensor]:
    """Compares what each NC says of learners of a kind with what is true."""
    whole = config.eval_tasks if domain.name == "sinusoids" else config.digits_tasks
    count = whole if kind == LIKE else config.unlike
    found: dict[str, list[Tensor]] = {}
    for first in range(0, count, PART):
        generator = stream(config.seed, "evaluation tasks", domain.name, kind, first)
        learners = domain.make(kind, min(PART, count - first), generator)
        for name, nc in domain.ncs.items():
            for field, tensor in measure(nc, *learners).tensors().items():
                found.setdefault(f"{name}/{field}", []).append(tensor)
    return {key: torch.cat(parts) for key, parts in found.items()}


def _of(name: str, tensors: dict[str, Tensor]) -> Calibration:
    """Takes what was found of one NC."""
    return _calibration({key: tensors[f"{name}/{key}"] for key in FIELDS})


def _calibration(own: dict[str, Tensor]) -> Calibration:
    names = tuple(map(str, range(own["features"].shape[1])))  # nobody asks for them here
    predicted, true, spread, features = (own[key] for key in FIELDS)
    return Calibration(predicted, true, spread, features, names, sizes=((1, 1), (1, 1)))


def _draw(config: Config, learners: Calibration) -> dict[str, Tensor]:
    """Draws calibration sets and tells how many learners are inside which bound, (draws,).

    Calibration sets are drawn with replacement from the same learners that stand for all learners,
    so that the share of all that is inside a bound is exact, where the bound is the same for all.
    For the normalised bound, which is not, some new learners are drawn for each set. The trivial
    predictor knows the mean gap of as many other learners.
    """
    n = config.calibration
    mean = learners.true[:n].mean()
    errors = {"NC": learners.residuals[n:], MEAN: learners.true[n:] - mean}
    spreads = learners.spread[n:]
    found: dict[str, list[Tensor]] = {}
    generator = stream(config.seed, "draws of calibration sets")
    for _ in range(0, config.draws, DRAWN):
        drawn = torch.randint(len(spreads), (DRAWN, 1, n), generator=generator)
        new = torch.randint(len(spreads), (DRAWN, NEW), generator=generator)
        for who, residuals in errors.items():
            everyone = residuals.abs().sort().values
            for method, confidence in _asked(who):
                each = new if method == "normalised" else new[:, :1]
                calibration = drawn.expand(-1, each.shape[1], -1)
                width = margin(
                    residuals[calibration],
                    spreads[calibration],
                    spreads[each],
                    confidence=confidence,
                    method=method,
                    delta=DELTA,
                )  # (DRAWN, each)
                if method == "normalised":
                    inside = (residuals[each].abs() <= width).double()
                else:
                    inside = torch.searchsorted(everyone, width, right=True) / len(everyone)
                key = f"{who}/{method}/{confidence}"
                found.setdefault(f"{key}/inside", []).append(inside.double().mean(dim=1))
                found.setdefault(f"{key}/width", []).append(2 * width.mean(dim=1))
    return {key: torch.cat(parts)[: config.draws] for key, parts in found.items()}


def _asked(who: str) -> list[tuple[Method, float]]:
    """Lists bounds; the trivial predictor has no spread of its own to normalise by."""
    chosen = [method for method in METHODS if who == "NC" or method != "normalised"]
    return [(method, confidence) for method in chosen for confidence in CONFIDENCES]


def _bound_rows(
    config: Config, domain: str, predictors: dict[str, str], drawn: dict[str, Tensor]
) -> list[Row]:
    """Coverage and width of the bounds around NC's prediction, and around the mean gap."""
    rows = []
    for who, name in predictors.items():
        for method, confidence in _asked(who):
            row = partial(
                score_row, NAME, config.seed, f"{name}: {method}", f"{domain}, {confidence}"
            )
            key = f"{who}/{method}/{confidence}"
            inside, width = drawn[f"{key}/inside"], drawn[f"{key}/width"]
            rows.append(row("coverage", estimate_mean(inside)))
            if width.isfinite().all():  # of an infinite one there is no mean
                rows.append(row("width", estimate_mean(width)))
            if method in PAC:
                good = (inside >= confidence).double()
                rows.append(row("good calibration sets", estimate_mean(good)))
    return rows


def _likeness_rows(
    config: Config, domain: str, nc: str, known: dict[str, Calibration]
) -> list[Row]:
    """How many learners of each kind raise an alarm, and what a bound does about them."""
    first = {key: tensor[: config.calibration] for key, tensor in known[LIKE].tensors().items()}
    calibration = _calibration(first)
    rows = []
    for kind, learners in known.items():
        row = partial(score_row, NAME, config.seed, nc, f"{domain}, {kind}")
        own = slice(config.calibration, None) if kind == LIKE else slice(0, None)
        alarm = likeness(calibration, learners.features[own]) <= ALARM
        width = torch.stack(
            [
                margin(calibration.residuals, calibration.spread, s, method="normalised")
                for s in learners.spread[own]
            ]
        )
        inside = learners.residuals[own].abs() <= width
        rows.append(row("alarm", estimate_mean(alarm.double())))
        rows.append(row("coverage", estimate_mean(inside.double())))
        if not alarm.all():
            rows.append(row("coverage without alarm", estimate_mean(inside[~alarm].double())))
    return rows
