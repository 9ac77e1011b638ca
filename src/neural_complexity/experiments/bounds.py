"""Proposition 1 and tighter bounds: do they hold, how wide are they, when do they not apply."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Annotated, Any

import torch
from matplotlib.lines import Line2D
from torch import Tensor

from neural_complexity.assessment.report import COLORS, Table
from neural_complexity.experiments.base import shifted_learners as shifted
from neural_complexity.experiments.base.comparison import label, presets
from neural_complexity.experiments.base.config import AtLeast, Count, NetworksConfig
from neural_complexity.experiments.base.experiment import Drawing, Experiment, Outcome, Parts
from neural_complexity.experiments.base.plots import sketch
from neural_complexity.experiments.base.rows import Keys, Row, distinct, find, pivot, select, show
from neural_complexity.experiments.base.run_folder import HEADS, load_networks
from neural_complexity.meta.scores import Estimate, estimate_mean, estimate_over_seeds
from neural_complexity.model.network import find_nc
from neural_complexity.progress import ProgressCallback
from neural_complexity.reliability.calibration import Calibration, shift_p_values
from neural_complexity.reliability.gap_bounds import METHODS, PAC, margin
from neural_complexity.workspace import Workspace

__all__ = ["EXPERIMENT"]

NAME = "bounds"
CONFIDENCES = (0.8, 0.9, 0.95)
DELTA = 0.05  # the share of calibration sets for which the bounds that say so may fail
ALARM = 0.05  # a learner with a smaller p-value is taken to be shifted
MEAN: Keys = {"method": "mean gap"}  # the trivial predictor
PREDICTORS: list[Keys] = [*({"method": "NC", "head": head} for head in HEADS), MEAN]
MARKS: dict[Any, str] = dict(zip(METHODS, ("o", "D", "s", "^"), strict=True))


@dataclass(frozen=True, kw_only=True)
class Config(NetworksConfig):
    """Coverage and width of bounds, and how distribution shift is noticed."""

    calibration: Annotated[int, AtLeast(2)] = 700  # Learners of a calibration set; dkw needs 600.
    draws: Annotated[int, AtLeast(2)] = 20  # Calibration sets, which have no learner in common.
    unlike: Annotated[int, AtLeast(2)] = 1024  # Learners of each kind that is shifted.
    nc: str = ""
    """The file of an NC of training digits only, as `own` leaves it; the shipped one if empty."""
    digits_tasks: Annotated[int, AtLeast(2)] = 2048  # Learners of digits in no calibration set.
    digits_train: Count = 100  # Training images of each.
    digits_test: Count = 100  # Test images of each.
    digits_steps: Count = 50  # Updates of the learners of digits.


SMOKE: dict[str, Any] = {"eval_tasks": 128, "digits_tasks": 64, "calibration": 60}
SMOKE |= {"draws": 2, "unlike": 32}
# The paper has no such table; `paper` has as many learners as other experiments.
PRESETS = presets(Config, smoke=SMOKE, cpu={"eval_tasks": 4096, "unlike": 256}, paper={})


def run(config: Config, work: Workspace, callback: ProgressCallback | None = None) -> Outcome:
    networks = load_networks(config.networks, config.device)
    nc = find_nc(config.nc or "digits").to(config.device)
    sizes = (config.digits_train, config.digits_test, config.digits_steps)
    common = (config.seed, config.device, config.unlike)
    # One more set is for the trivial predictor, which knows the mean gap of its learners.
    known = (config.draws + 1) * config.calibration
    domains = (
        shifted.SinusoidLearners(*common, known + config.eval_tasks, networks),
        shifted.DigitLearners(*common, known + config.digits_tasks, {nc.head.name: nc}, *sizes),
    )
    parts = Parts(work, sum(len(domain.kinds) for domain in domains), callback)
    rows: list[Row] = []
    for domain in domains:
        do = {kind: partial(domain.measure, kind) for kind in domain.kinds}
        measured = {kind: parts.do(f"{domain.name}: {kind}", work) for kind, work in do.items()}
        row = partial(Row.of, NAME, config.seed, domain=domain.name)
        for i, head in enumerate(domain.networks):
            found = {k: shifted.calibration_of(head, tensors) for k, tensors in measured.items()}
            usual, nc_keys = found[shifted.CALIBRATED], {"method": "NC", "head": head}
            others = usual.true[config.draws * config.calibration : known]
            mean = usual.true - others.mean()
            rows += _bound_rows(partial(row, **nc_keys), config, usual.residuals, usual.spread)
            if i == 0:  # the mean gap is the same beside all NCs
                rows += _bound_rows(partial(row, **MEAN), config, mean)
            rows += _shift_rows(partial(row, **nc_keys), config.calibration, known, found)
    facts = parts.facts(networks) | {"digits": config.nc or "the shipped NC"}
    return Outcome(rows, facts=facts)


def _bound_rows(
    row: Callable[..., Row], config: Config, errors: Tensor, spreads: Tensor | None = None
) -> list[Row]:
    """Bounds from each calibration set, scored on learners of tasks that are in none of them.

    The sets are the first learners, then one that has another use, then those to score, (B,) in
    all; without NC's own spread there is nothing to normalise by.
    """
    n, K = config.calibration, config.draws
    own = torch.ones_like(errors) if spreads is None else spreads
    sets = [slice(n * k, n * (k + 1)) for k in range(K)]
    errors_new, own_new = errors[n * (K + 1) :], own[n * (K + 1) :]
    rows = []
    for method, confidence in product(METHODS, CONFIDENCES):
        if spreads is None and method == "normalised":
            continue
        claim: Any = {"method": method, "confidence": confidence, "delta": DELTA}
        # Where NC's spread counts, every new learner has a margin of its own.
        wide = (len(errors_new), n) if method == "normalised" else (n,)
        margins = torch.stack(
            [margin(errors[s].expand(wide), own[s].expand(wide), own_new, **claim) for s in sets]
        )
        inside = (errors_new.abs() <= margins).double()  # (sets, new learners)
        make = partial(row, bound=method, confidence=confidence)
        rows.append(make("coverage", _over_both(inside)))
        by_set = inside.mean(dim=1)
        rows.append(make("spread over sets", Estimate(by_set.std().item(), None, K)))
        if margins.isfinite().all():  # of an infinite one there is no mean
            rows.append(make("width", _over_both(2 * margins)))
        if method in PAC:
            good = (by_set >= confidence).double().mean().item()
            # No interval: all sets are scored on the same new learners.
            rows.append(make("good calibration sets", Estimate(good, None, K)))
    return rows


def _over_both(values: Tensor) -> Estimate:
    """The mean over calibration sets and new learners, whose interval has the luck of both."""
    by_set, by_learner = estimate_over_seeds(values.mean(dim=1)), estimate_mean(values.mean(dim=0))
    half = math.hypot(by_set.ci95 or 0.0, by_learner.ci95 or 0.0)
    return Estimate(by_set.value, half, by_learner.n)


def _shift_rows(
    row: Callable[..., Row], n: int, seen: int, known: dict[str, Calibration]
) -> list[Row]:
    """How many learners of each kind raise an alarm, and what a bound does about them.

    The first n calibrate; of their kind, those after the first `seen` are scored.
    """
    usual = known[shifted.CALIBRATED]
    first: Any = {name: tensor[:n] for name, tensor in usual.tensors().items()}
    calibration = Calibration(**first, names=usual.names, sizes=usual.sizes)
    sets, rows = (calibration.residuals, calibration.spread), []
    for kind, learners in known.items():
        own = slice(seen if kind == shifted.CALIBRATED else 0, None)
        alarm = shift_p_values(calibration, learners.features[own]) <= ALARM
        widths = [margin(*sets, s, method="normalised") for s in learners.spread[own]]
        inside = learners.residuals[own].abs() <= torch.stack(widths)
        found = {"alarm": alarm, "coverage": inside}
        if not alarm.all():
            found["coverage without alarm"] = inside[~alarm]
        rows += [row(m, estimate_mean(v.double()), learners=kind) for m, v in found.items()]
    return rows


def tables(rows: list[Row]) -> list[Table]:
    found = []
    for domain in distinct(rows, "domain"):
        own, name = select(rows, **domain), domain["domain"]
        metrics = {"coverage": "coverage", "spread over sets": "spread", "width": "width"}
        metrics |= {"good calibration sets": "good sets"}
        lines = []
        bounds = distinct(select(own, learners=None), "method", "head", "bound")
        for keys in sorted(bounds, key=lambda keys: keys["method"] == MEAN["method"]):
            cells = [
                show(find(own, metric, **keys, confidence=c), 3)
                or ("infinite" if metric == "width" else "")
                for metric, c in product(metrics, CONFIDENCES)
            ]
            lines.append((f"{label(keys)}: {keys['bound']}", *cells))
        alarms = select(own, "alarm")
        columns = {
            f"{label(nc)}: {metric}": (metric, nc)
            for nc in distinct(alarms, "method", "head")
            for metric in ("alarm", "coverage", "coverage without alarm")
        }
        kinds = distinct(alarms, "learners")
        found += [
            Table(
                f"Two-sided bounds on {name}",
                ("bound", *(f"{m}, {c:g}" for m, c in product(metrics.values(), CONFIDENCES))),
                tuple(lines),
                "Value ± 95 % interval, over calibration sets and new learners. Coverage: which "
                "share of new learners, of tasks that no calibration set contains, is inside. "
                "Spread: its standard deviation over calibration sets, which have no learner in "
                "common. Width: infinite where calibration learners are too few. Good sets: those "
                "whose bound holds for at least the stated share of these new learners (whose luck "
                f"is in it); the claim is {1 - DELTA:g} of them. All tasks of digits are of the "
                "same 360 images.",
            ),
            Table(
                f"Distribution shift, learners of {name}",
                ("learners", *columns),
                tuple(pivot(own, kinds, columns.values(), "{learners}".format_map)),
                f"Alarm: the share whose p-value is at most {ALARM:g}. Coverage: of the normalised "
                "bound at 0.95, with one calibration set, of all learners and of those without.",
            ),
        ]
    return found


def figures(outcome: Outcome) -> list[Drawing]:
    rows, domains = outcome.rows, distinct(outcome.rows, "domain")
    lines = len(domains)
    grid = partial(sketch, 8.5, squeeze=False)
    coverage, tops = grid(2.9 * lines + 0.4, lines, len(PREDICTORS), sharex=True, sharey=True)
    widths, bottoms = grid(2.9 * lines + 0.5, lines, len(CONFIDENCES), sharey="row")
    colors = [COLORS[str(keys.get("head", "none"))] for keys in PREDICTORS]
    for domain, top, bottom in zip(domains, tops, bottoms, strict=True):
        for ax, keys, color in zip(top, PREDICTORS, colors, strict=True):
            own = select(rows, **domain, **keys, learners=None)
            ax.set_visible(bool(own))
            ax.axhline(0, color=COLORS["target"], lw=0.8, ls=":")
            finite = [row.keys for row in select(own, "width")]
            for row in select(own, "coverage"):
                if row.keys in finite:
                    mark, i = MARKS[row.keys["bound"]], list(MARKS).index(row.keys["bound"])
                    claimed = float(row.keys["confidence"])
                    look: Any = {"fmt": mark, "ms": 5, "mfc": "none", "color": color, "lw": 0.8}
                    place = claimed + 0.006 * (i - 1.5)  # side by side
                    ax.errorbar(place, row.value - claimed, row.ci95, **look)
            ax.set(title=f"{domain['domain']}, {label(keys)}", xticks=CONFIDENCES)
            ax.set(xlabel="claimed", ylabel="share inside - claimed")
            ax.label_outer()
        for ax, confidence in zip(bottom, CONFIDENCES, strict=True):
            for i, keys in enumerate(PREDICTORS):
                found = select(rows, "width", **domain, **keys, confidence=confidence)
                places = [METHODS.index(row.keys["bound"]) + 0.26 * (i - 1) for row in found]
                look = {"width": 0.24, "color": colors[i], "label": label(keys)}
                ax.bar(places, [row.value for row in found], **look)
            ax.set(yscale="log", title=f"{domain['domain']}, confidence {confidence:g}")
            ax.set_xticks(range(len(METHODS)), [m.replace("_", "\n") for m in METHODS], fontsize=7)
            ax.grid(visible=False, axis="x")
        bottom[0].set_ylabel("width")
    dark: Any = {"color": COLORS["target"], "ls": "", "mfc": "none"}
    marks = [Line2D([], [], marker=mark, label=method, **dark) for method, mark in MARKS.items()]
    coverage.legend(handles=marks, loc="outside lower center", ncols=len(MARKS))
    bars = bottoms[0, 0].get_legend_handles_labels()
    widths.legend(*bars, loc="outside lower center", ncols=len(PREDICTORS))
    hold = "The claim is true on or above the line; bars are 95 % intervals. The rest is infinite."
    wide = "Mean width of the two-sided bounds, on a logarithmic scale."
    return [
        Drawing("coverage", coverage, "Do the bounds hold?", hold),
        Drawing("widths", widths, "How wide are they?", wide),
    ]


LEAD = (
    "How far NC was off on calibration learners bounds how far it is off on a new one: by "
    "Proposition 1, stated correctly (dkw), by the binomial distribution (clopper_pearson), and "
    "by conformal prediction, also normalised by NC's own spread. The first two claim that all "
    f"but {DELTA:g} of all calibration sets give a bound that holds for at least the stated share "
    "of new learners; the others, that share over sets and learners together. Bounds around the "
    "mean gap of other learners need no NC. None speaks for learners under distribution shift, "
    "which raise an alarm. Learners of digits have points that their NC has never seen."
)
EXPERIMENT = Experiment(NAME, "Bounds on the gap", LEAD, Config, PRESETS, run, tables, figures)
