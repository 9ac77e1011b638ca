"""Section 4.2: NC trained on networks, asked about learners in closed form."""

from dataclasses import dataclass
from functools import partial
from itertools import product
from operator import itemgetter

import torch
from torch import Tensor

from neural_complexity.assessment.report import COLORS, Table
from neural_complexity.experiments.base import comparison, plots
from neural_complexity.experiments.base.comparison import SCORES, Result
from neural_complexity.experiments.base.config import Count, NetworksConfig
from neural_complexity.experiments.base.experiment import Drawing, Experiment, Outcome, Parts
from neural_complexity.experiments.base.rows import Row, pivot, select, show
from neural_complexity.experiments.base.run_folder import HEADS, load_networks
from neural_complexity.learners import closed_form
from neural_complexity.learners.closed_form import ClosedForm, Kernel
from neural_complexity.learners.fit import train_learners
from neural_complexity.losses import squared_error
from neural_complexity.meta import scores
from neural_complexity.model.judgement import judge
from neural_complexity.progress import ProgressCallback
from neural_complexity.seeding import stream
from neural_complexity.snapshot import gap, take_snapshot
from neural_complexity.task import Task
from neural_complexity.tasks.families import Sinusoids
from neural_complexity.workspace import Workspace

__all__ = ["EXPERIMENT"]

NAME = "simple"
SETS = ("X_tr", "Y_tr", "H_tr", "X_te", "Y_te", "H_te")
PREDICTORS = ("NC posterior", "NC direct", "GP, RBF kernel", "GP, sinusoid kernel")
# Twice the range of x, so that no feature repeats within it; none has the family's own period.
PERIOD, FREQUENCIES, STRENGTH = 20.0, 5, 0.1
FEATURES = closed_form.fourier_features(PERIOD, FREQUENCIES)
FITS: dict[str, ClosedForm | None] = {
    "0-th order polynomial": closed_form.polynomial(0),
    "nearest neighbour": closed_form.nearest_neighbour,
    "network": None,  # the paper's, after its 16 steps
    "ridge": closed_form.ridge(STRENGTH, features=FEATURES),
}
LEARNERS = (*FITS, "Gaussian process")
# RBF kernels to choose from. The family has no noise: the least is what double precision bears.
LENGTHSCALES = (0.5, 1.0, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0)
AMPLITUDES = (1.0, 2.0, 3.0, 4.0, 5.0, 7.0, 10.0)
NOISES = (1e-8, 1e-6, 1e-4, 1e-2)
PROCESSES = {
    (scale, height, noise): closed_form.gaussian_process(
        closed_form.rbf(scale, height), noise=noise
    )
    for scale, height, noise in product(LENGTHSCALES, AMPLITUDES, NOISES)
}
NOTES = {
    "test loss": "Mean squared error ± 95 % interval over tasks. Beliefs are a gap predictor's own "
    "mean for y, used as a predictor. The learner called Gaussian process is the one with the RBF "
    "kernel.",
    "R2": "Value ± 95 % interval over tasks, here and below; each column is a gap predictor. R2 is "
    "the coefficient of determination. The sinusoid kernel knows the family. It is the best linear "
    "prediction, not the exact Bayes posterior, since b from 0 to pi favours some sinusoids; but "
    "ten points without noise settle a sinusoid either way.",
}


@dataclass(frozen=True, kw_only=True)
class Config(NetworksConfig):
    """Simple learners on sinusoids; the paper shows pictures alone, so the sizes are ours."""

    tuning_tasks: Count = 512  # Other tasks, on which the RBF kernel is chosen by likelihood.


def run(config: Config, work: Workspace, callback: ProgressCallback | None = None) -> Outcome:
    """Trains learners on held-out tasks; NC and Gaussian processes predict their gaps."""
    networks = load_networks(config.networks, config.device)
    family, task = Sinusoids(), comparison.evaluation_tasks(config)
    parts = Parts(work, 1 + len(LEARNERS), callback)

    def tune() -> Result:
        """Returns the mean log marginal likelihood of every RBF kernel on tasks of their own."""
        some = family.sample(config.tuning_tasks, stream(config.seed, "kernel tasks"))
        some = some.to(config.device)
        fits = [process(some.X_tr, some.Y_tr) for process in PROCESSES.values()]
        return {"log_likelihood": torch.stack([fit.log_likelihood().mean() for fit in fits])}

    chosen = [*PROCESSES][int(parts.do("RBF kernel", tune)["log_likelihood"].argmax())]
    own = closed_form.gaussian_process(sinusoid_kernel(family), noise=NOISES[0])
    processes = {"GP, RBF kernel": PROCESSES[chosen], "GP, sinusoid kernel": own}
    beliefs = {name: fit(task.X_tr, task.Y_tr) for name, fit in processes.items()}

    def train(learner: ClosedForm | None) -> Result:
        """Returns predictions and losses of one learner on all tasks, and its gap as predicted."""
        if learner is None:
            end = train_learners(comparison.sinusoid_recipe(), task, seed=config.seed).end
        else:
            end = take_snapshot(learner(task.X_tr, task.Y_tr), task)
        loss_tr = squared_error(end.H_tr, end.Y_tr).mean(dim=1)  # (B,)
        loss_te = squared_error(end.H_te, task.Y_te).mean(dim=1)
        found = {"H_tr": end.H_tr, "H_te": end.H_te, "loss_tr": loss_tr, "loss_te": loss_te[None]}
        found |= {f"predicted/NC {head}": judge(nc, end).gap for head, nc in networks.items()}
        for name, process in beliefs.items():
            expected = squared_error.expected(end.H_te, process.belief(task.X_te))
            found[f"predicted/{name}"] = expected.mean(dim=1) - loss_tr
        return found | {"gap": gap(squared_error, end, task.Y_te)}

    learners = FITS | {"Gaussian process": processes["GP, RBF kernel"]}
    ends = {name: parts.do(name, partial(train, fit)) for name, fit in learners.items()}
    # What each gap predictor's own mean for y achieves as a predictor of y.
    means = {"NC posterior": comparison.own_predictions(networks["posterior"], task)}
    means |= {name: fit(task.X_te) for name, fit in beliefs.items()}
    losses = {name: squared_error(mean, task.Y_te).mean(dim=1) for name, mean in means.items()}
    facts = {
        "RBF kernel": dict(zip(("lengthscale", "amplitude", "noise"), chosen, strict=True)),
        "ridge": {"strength": STRENGTH, "period": PERIOD, "frequencies": FREQUENCIES},
        **parts.facts(networks),
    }
    rows, row = list[Row](), partial(Row.of, NAME, config.seed)
    for learner, end in ends.items():
        for metric, key in (("train loss", "loss_tr"), ("test loss", "loss_te")):
            rows.append(row(metric, scores.estimate_mean(end[key].flatten()), learner=learner))
    for predictor, loss in losses.items():
        rows.append(row("test loss", scores.estimate_mean(loss), predictor=predictor))
    for (learner, end), predictor in product(ends.items(), PREDICTORS):
        for metric, score in SCORES.items():
            fit = scores.estimate(score, end[f"predicted/{predictor}"], end["gap"])
            rows.append(row(metric, fit, predictor=predictor, learner=learner))
    return Outcome(rows, _figure_tensors(task, ends), facts=facts)


def sinusoid_kernel(family: Sinusoids) -> Kernel:
    """Returns the kernel E y y' of the family itself, E A^2 cos(x - x') / 2, of rank 2.

    It holds since 2b covers whole turns evenly. As b favours cos x, y is neither normal nor of mean
    zero: this is the best linear prediction, not the Bayes posterior. But two points without noise
    settle a sinusoid, so given ten of them both know it.
    """
    low, high = family.amplitude
    square = (low**2 + low * high + high**2) / 3  # E A^2, of a uniform A

    def kernel(X: Tensor, other: Tensor) -> Tensor:
        return 0.5 * square * torch.cos(X - other.mT)  # (B, P, 1) and (B, 1, Q)

    return kernel


def _figure_tensors(task: Task, ends: dict[str, Result]) -> Result:
    """Returns all gaps, and for each learner the tasks with the extreme posterior predictions."""
    tensors: Result = {}
    for learner, end in ends.items():
        gaps = {head: end[f"predicted/NC {head}"] for head in HEADS} | {"true": end["gap"]}
        picks = torch.stack([gaps["posterior"].argmin(), gaps["posterior"].argmax()])  # (2,)
        given = task.to("cpu")[picks]
        sets = {name: end[name][picks] for name in ("H_tr", "H_te")} | {"task": picks}
        sets |= {name: getattr(given, name) for name in ("X_tr", "Y_tr", "X_te", "Y_te")}
        tensors |= {f"gaps/{learner}/{name}": values for name, values in gaps.items()}
        tensors |= {f"shown/{learner}/{name}": values for name, values in sets.items()}
    return {name: tensor.detach().clone() for name, tensor in tensors.items()}


def tables(rows: list[Row]) -> list[Table]:
    """Returns the tables of the learners' losses and of each score of the predicted gaps."""
    size, cell = f"{rows[0].n:,} held-out tasks", partial(show, digits=4)
    learners, name = [{"learner": learner} for learner in LEARNERS], itemgetter("learner")
    losses = pivot(rows, learners, [("train loss", {}), ("test loss", {})], name, cell)
    losses += [
        (f"{row.keys['predictor']}, its beliefs", "", cell(row))
        for row in select(rows, "test loss", learner=None)
    ]
    header = ("learner", "train loss", "test loss")
    found = [Table(f"Losses, {size}", header, tuple(losses), NOTES["test loss"])]
    for metric in SCORES:
        columns = [(metric, {"predictor": predictor}) for predictor in PREDICTORS]
        lines = pivot(rows, learners, columns, name, cell)
        title, note = f"{metric} of predicted against true gap, {size}", NOTES.get(metric, "")
        found.append(Table(title, ("learner", *PREDICTORS), tuple(lines), note))
    return found


def figures(outcome: Outcome) -> list[Drawing]:
    """Draws the extremes of the predicted gaps, and predicted against true gaps."""
    tensors, size = outcome.tensors, len(LEARNERS)
    canvas, axes = plots.sketch(12, 6.2, 2, size, sharex=True)
    names = {"true gap": "true", **{f"NC {head}": head for head in HEADS}}
    for ax, (i, learner) in zip(axes.flat, product(range(2), LEARNERS), strict=True):
        task = tensors[f"shown/{learner}/task"][i]
        sets = {name: tensors[f"shown/{learner}/{name}"][i] for name in SETS}
        plots.plot_targets(ax, sets)
        look = {"color": COLORS["oracle"], "label": "learner on training inputs"}
        ax.plot(sets["X_tr"], sets["H_tr"], "+", ms=6, **look)
        gaps = {name: tensors[f"gaps/{learner}/{key}"][task] for name, key in names.items()}
        told = [f"{name} {value:.3g}" for name, value in gaps.items()]
        ax.set_title("\n".join(told if i else [learner, *told]))
        ax.set_xlabel("x" if i else "")
    for ax, extreme in zip(axes[:, 0], ("smallest", "largest"), strict=True):
        ax.set_ylabel(f"{extreme} predicted gap\n\ny")
    canvas.legend(*axes[0, 0].get_legend_handles_labels(), loc="outside lower center", ncols=4)
    caption = (
        "For each learner, the two held-out tasks at the extremes of the posterior head's "
        "predictions. Circles are targets, filled at training points and empty at test points "
        "(never shown to NC); plus signs are predictions. As in the paper, nearest neighbour fits "
        "the training points perfectly, yet NC penalizes it where the result is no sinusoid."
    )
    title = "The smallest and the largest predicted gap"
    extremes = Drawing("extremes", canvas, title, caption)
    canvas, axes = plots.sketch(12, 5.2, len(HEADS), size)
    for ax, (head, learner) in zip(axes.flat, product(HEADS, LEARNERS), strict=True):
        true, predicted = (tensors[f"gaps/{learner}/{name}"] for name in ("true", head))
        fit = plots.scatter_gaps(ax, true, predicted, COLORS[head])
        ax.set_title(f"{learner}\nNC {head}, {fit}")
    caption = "One dot per held-out task; the outermost 0.2 % of values are cut off."
    return [extremes, Drawing("gap-fit", canvas, "Predicted against true gap", caption)]


# At `paper`, `networks` may name NCs of the paper's size; this costs little.
PRESETS = comparison.presets(Config, {"eval_tasks": 256}, {})
LEAD = (
    "NC was trained on networks. Here it judges other learners on held-out sinusoids: the mean of "
    "the targets, the nearest neighbour, ridge regression on ten Fourier features, a Gaussian "
    "process, and the network after 16 steps. As baselines, two Gaussian processes predict the gap "
    "from their exact posteriors: one with an RBF kernel chosen by marginal likelihood on other "
    "tasks, one with the family's own kernel, proportional to cos(x - x'), which knows that all "
    "targets are sinusoids of period 2 pi. The paper gives pictures of these, no numbers."
)
EXPERIMENT = Experiment(NAME, "Simple learners", LEAD, Config, PRESETS, run, tables, figures)
