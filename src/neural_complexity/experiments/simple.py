"""Section 4.2: NC trained on networks, asked about learners in closed form."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path

import torch
from torch import Tensor

from neural_complexity.experiments.base.comparison import sinusoid_recipe
from neural_complexity.experiments.base.configs import AsksNetworks, check_least
from neural_complexity.experiments.base.networks import how_made, load_networks
from neural_complexity.experiments.base.outcome import Outcome
from neural_complexity.experiments.base.pieces import Pieces
from neural_complexity.experiments.base.rows import Row, score_row
from neural_complexity.learners.closed_form import (
    ClosedForm,
    GaussianProcess,
    Kernel,
    fourier_features,
    gaussian_process,
    nearest_neighbour,
    polynomial,
    rbf,
    ridge,
)
from neural_complexity.losses import Gaussian, squared_error
from neural_complexity.meta.evaluate import CHUNK, follow, predict_gaps
from neural_complexity.meta.scores import (
    correlation,
    estimate,
    estimate_mean,
    mean_absolute_error,
    r_squared,
)
from neural_complexity.model.network import NeuralComplexity
from neural_complexity.progress import Tell
from neural_complexity.seeding import stream
from neural_complexity.snapshot import Snapshot, gap, take_snapshot
from neural_complexity.task import Task
from neural_complexity.tasks.sinusoids import Sinusoids

__all__ = [
    "LEARNERS",
    "NAME",
    "PREDICTORS",
    "PRESETS",
    "SCORES",
    "Config",
    "cpu",
    "paper",
    "run",
    "smoke",
]

NAME = "simple"
LEARNERS = ("0-th order polynomial", "nearest neighbour", "network", "ridge", "Gaussian process")
PREDICTORS = ("NC posterior", "NC direct", "GP, RBF kernel", "GP, sinusoid kernel")
SCORES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "R2": r_squared,
    "correlation": correlation,
    "MAE": mean_absolute_error,
}

# The paper's network, after its 16 steps.
NETWORK = sinusoid_recipe()
# Twice the range of x, so that no feature repeats within it; none has the family's own period.
PERIOD, FREQUENCIES, STRENGTH = 20.0, 5, 0.1
# Tried for the RBF kernel. The family has no noise: the least is what double precision bears.
LENGTHSCALES = (0.5, 1.0, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0)
AMPLITUDES = (1.0, 2.0, 3.0, 4.0, 5.0, 7.0, 10.0)
NOISES = (1e-8, 1e-6, 1e-4, 1e-2)


@dataclass(frozen=True, kw_only=True)
class Config(AsksNetworks):
    """Simple learners on sinusoids; the paper shows pictures alone, so the sizes are ours."""

    tuning_tasks: int = 512
    """Other tasks, on which the RBF kernel is chosen by marginal likelihood."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_least(self, 1, "tuning_tasks")


def paper() -> Config:
    """The same as `cpu`, which costs little; `networks` may name NCs of the paper's size."""
    return Config()


def cpu() -> Config:
    """Less than a minute on two cores."""
    return Config()


def smoke() -> Config:
    """Seconds; what CI runs."""
    return Config(eval_tasks=256)


PRESETS: dict[str, Callable[[], Config]] = {"smoke": smoke, "cpu": cpu, "paper": paper}


def run(config: Config, *, folder: Path | None = None, tell: Tell | None = None) -> Outcome:
    """Lets learners learn held-out tasks, and NC and Gaussian processes predict their gaps.

    Args:
        config: The settings.
        folder: Where finished pieces are kept, so that the same call goes on after an interruption.
        tell: Told about the progress.
    """
    networks = load_networks(config.networks, config.device)
    family = Sinusoids()
    task = family.sample(config.eval_tasks, stream(config.seed, "evaluation tasks"))
    task = task.to(config.device)
    pieces = Pieces(1 + len(LEARNERS), config, folder, tell)
    tried = pieces.do("RBF kernel", partial(_try_kernels, config, family))["log_likelihood"]
    lengthscale, amplitude, noise = _best(tried)
    processes = {
        "GP, RBF kernel": gaussian_process(rbf(lengthscale, amplitude), noise=noise),
        "GP, sinusoid kernel": gaussian_process(_sinusoid_kernel(family), noise=NOISES[0]),
    }
    beliefs = {name: learn(task.X_tr, task.Y_tr) for name, learn in processes.items()}
    learners: dict[str, ClosedForm | None] = {
        "0-th order polynomial": polynomial(0),
        "nearest neighbour": nearest_neighbour,
        "network": None,
        "ridge": ridge(STRENGTH, features=fourier_features(PERIOD, FREQUENCIES)),
        "Gaussian process": processes["GP, RBF kernel"],
    }
    ends = {
        name: pieces.do(name, partial(_judge, config, task, learners[name], networks, beliefs))
        for name in LEARNERS
    }
    rows = [
        *_loss_rows(config, ends),
        *_belief_rows(config, task, networks["posterior"], beliefs),
        *_fit_rows(config, ends),
    ]
    facts = {
        "RBF kernel": {"lengthscale": lengthscale, "amplitude": amplitude, "noise": noise},
        "ridge": {"strength": STRENGTH, "period": PERIOD, "frequencies": FREQUENCIES},
        **how_made(networks, pieces),
    }
    return Outcome(rows, _figure_tensors(task, ends), facts=facts)


def _try_kernels(config: Config, family: Sinusoids) -> dict[str, Tensor]:
    """Computes the mean log marginal likelihood of every RBF kernel on tasks of their own."""
    task = family.sample(config.tuning_tasks, stream(config.seed, "kernel tasks"))
    task = task.to(config.device)
    values = [
        gaussian_process(rbf(lengthscale, amplitude), noise=noise)(task.X_tr, task.Y_tr)
        .log_likelihood()
        .mean()
        for lengthscale, amplitude, noise in product(LENGTHSCALES, AMPLITUDES, NOISES)
    ]
    return {"log_likelihood": torch.stack(values)}


def _best(log_likelihood: Tensor) -> tuple[float, float, float]:
    """Gives the lengthscale, amplitude and noise of the likeliest kernel."""
    return list(product(LENGTHSCALES, AMPLITUDES, NOISES))[int(log_likelihood.argmax())]


def _sinusoid_kernel(family: Sinusoids) -> Kernel:
    """Makes the kernel E y y' of the family itself, E A^2 cos(x - x') / 2.

    It holds since 2b covers whole turns evenly. A sin(x + b) lies in the span of sin x and cos x,
    so the kernel has rank 2. As b favours cos x, y is neither normal nor of mean zero: this is the
    best linear prediction, not the Bayes posterior. But two points settle a sinusoid without noise,
    so given ten of them both know it.
    """
    low, high = family.amplitude
    square = (low**2 + low * high + high**2) / 3  # E A^2, of a uniform A

    def kernel(X: Tensor, other: Tensor) -> Tensor:
        return 0.5 * square * torch.cos(X - other.mT)  # (B, P, 1) and (B, 1, Q)

    return kernel


def _judge(
    config: Config,
    task: Task,
    learner: ClosedForm | None,
    networks: dict[str, NeuralComplexity],
    beliefs: dict[str, GaussianProcess],
) -> dict[str, Tensor]:
    """Lets one learner learn all tasks, and everyone predict its gap."""
    if learner is None:
        end = follow(NETWORK, task, seed=config.seed).end
    else:
        end = take_snapshot(learner(task.X_tr, task.Y_tr), task)
    loss_tr = squared_error(end.H_tr, end.Y_tr).mean(dim=1)  # (B,)
    predicted = {f"NC {head}": predict_gaps(nc, end) for head, nc in networks.items()}
    for name, process in beliefs.items():
        predicted[name] = _expected_gap(end, loss_tr, process.belief(task.X_te))
    return {
        "H_tr": end.H_tr,
        "H_te": end.H_te,
        "loss_tr": loss_tr,
        "loss_te": squared_error(end.H_te, task.Y_te).mean(dim=1).unsqueeze(0),  # (1, B)
        "gap": gap(squared_error, end, task.Y_te),
        **{f"predicted/{name}": gaps for name, gaps in predicted.items()},
    }


def _expected_gap(end: Snapshot, loss_tr: Tensor, belief: Gaussian) -> Tensor:
    """Computes the gap to expect if a belief about the test targets is true, (B,)."""
    return squared_error.expected(end.H_te, belief).mean(dim=1) - loss_tr


def _loss_rows(config: Config, ends: dict[str, dict[str, Tensor]]) -> list[Row]:
    """What each learner itself achieves."""
    row = partial(score_row, NAME, config.seed)
    return [
        row(learner, "learner", metric, estimate_mean(end[key].flatten()))
        for learner, end in ends.items()
        for metric, key in (("train loss", "loss_tr"), ("test loss", "loss_te"))
    ]


def _belief_rows(
    config: Config, task: Task, nc: NeuralComplexity, beliefs: dict[str, GaussianProcess]
) -> list[Row]:
    """What each gap predictor's own mean for y achieves as a predictor of y."""
    parts = [task[i : i + CHUNK] for i in range(0, len(task), CHUNK)]
    with torch.no_grad():
        means = {
            "NC posterior": torch.cat(
                [nc.belief(p.X_tr, p.Y_tr, p.X_te).prediction for p in parts]
            ),
            **{name: process(task.X_te) for name, process in beliefs.items()},
        }
    return [
        score_row(
            NAME,
            config.seed,
            name,
            "beliefs",
            "test loss",
            estimate_mean(squared_error(mean, task.Y_te).mean(dim=1)),
        )
        for name, mean in means.items()
    ]


def _fit_rows(config: Config, ends: dict[str, dict[str, Tensor]]) -> list[Row]:
    """How well everyone predicts the gap of each learner."""
    return [
        score_row(
            NAME,
            config.seed,
            predictor,
            learner,
            metric,
            estimate(score, end[f"predicted/{predictor}"], end["gap"]),
        )
        for learner, end in ends.items()
        for predictor in PREDICTORS
        for metric, score in SCORES.items()
    ]


def _figure_tensors(task: Task, ends: dict[str, dict[str, Tensor]]) -> dict[str, Tensor]:
    """All gaps, and the two tasks per learner where the posterior head predicts the extremes."""
    tensors: dict[str, Tensor] = {}
    for learner, end in ends.items():
        gaps = {name: end[f"predicted/NC {name}"] for name in ("posterior", "direct")}
        gaps["true"] = end["gap"]
        picks = torch.stack([gaps["posterior"].argmin(), gaps["posterior"].argmax()])  # (2,)
        shown = task.to("cpu")[picks]
        sets = {"X_tr": shown.X_tr, "Y_tr": shown.Y_tr, "X_te": shown.X_te, "Y_te": shown.Y_te}
        sets |= {name: end[name][picks] for name in ("H_tr", "H_te")}
        sets["task"] = picks
        tensors |= {f"gaps/{learner}/{name}": values for name, values in gaps.items()}
        tensors |= {f"shown/{learner}/{name}": values for name, values in sets.items()}
    return {name: tensor.detach().clone() for name, tensor in tensors.items()}
