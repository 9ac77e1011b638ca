"""Proposition 1 and tighter bounds: do they hold, how wide are they, when do they not apply."""

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
from neural_complexity.meta.scores import estimate_mean
from neural_complexity.model.network import find_nc
from neural_complexity.progress import ProgressCallback
from neural_complexity.reliability.calibration import Calibration, shift_p_values
from neural_complexity.reliability.gap_bounds import METHODS, PAC, margin
from neural_complexity.seeding import stream
from neural_complexity.workspace import Workspace

__all__ = ["EXPERIMENT"]

NAME = "bounds"
CONFIDENCES = (0.8, 0.9, 0.95)
DELTA = 0.05  # the share of calibration sets for which the bounds that say so may fail
ALARM = 0.05  # a learner with a smaller p-value is taken to be shifted
BLOCK = 500  # draws at a time: bounds memory
NEW = 8  # new learners for each calibration set, where they must be drawn
MEAN: Keys = {"method": "mean gap"}  # the trivial predictor
PREDICTORS: list[Keys] = [*({"method": "NC", "head": head} for head in HEADS), MEAN]
MARKS: dict[Any, str] = dict(zip(METHODS, ("o", "D", "s", "^"), strict=True))


@dataclass(frozen=True, kw_only=True)
class Config(NetworksConfig):
    """Coverage and width of bounds, and how distribution shift is noticed."""

    calibration: Annotated[int, AtLeast(2)] = 700  # Learners of a calibration set; dkw needs 600.
    draws: Annotated[int, AtLeast(2)] = 10_000  # Calibration sets.
    unlike: Annotated[int, AtLeast(2)] = 1024  # Learners of each kind that is shifted.
    nc: str = ""
    """The file of an NC of training digits only, as `own` leaves it; the shipped one if empty."""
    digits_tasks: int = 2048  # Held-out tasks of digits.
    digits_train: Count = 100  # Training images of each.
    digits_test: Count = 100  # Test images of each.
    digits_steps: Count = 50  # Updates of the learners of digits.

    def __post_init__(self) -> None:
        super().__post_init__()
        least = f"at least twice the calibration, {2 * self.calibration}"
        for name in ("eval_tasks", "digits_tasks"):
            if getattr(self, name) < 2 * self.calibration:
                raise ValueError(f"{name} must be {least}, got {getattr(self, name)}")


SMOKE: dict[str, Any] = {"eval_tasks": 256, "digits_tasks": 256, "calibration": 100}
SMOKE |= {"draws": 1000, "unlike": 32}
# The paper has no such table; `paper` has as many learners as other experiments.
PRESETS = presets(Config, smoke=SMOKE, cpu={"eval_tasks": 4096, "unlike": 256}, paper={})


def run(config: Config, work: Workspace, callback: ProgressCallback | None = None) -> Outcome:
    networks = load_networks(config.networks, config.device)
    nc = find_nc(config.nc or "digits").to(config.device)
    sizes = (config.digits_train, config.digits_test, config.digits_steps)
    common = (config.seed, config.device, config.unlike)
    domains = (
        shifted.SinusoidLearners(*common, config.eval_tasks, networks),
        shifted.DigitLearners(*common, config.digits_tasks, {nc.head.name: nc}, *sizes),
    )
    parts = Parts(work, sum(len(d.kinds) + len(d.networks) for d in domains), callback)
    rows: list[Row] = []
    for domain in domains:
        do = {kind: partial(domain.measure, kind) for kind in domain.kinds}
        measured = {kind: parts.do(f"{domain.name}: {kind}", work) for kind, work in do.items()}
        row = partial(Row.of, NAME, config.seed, domain=domain.name)
        for i, head in enumerate(domain.networks):
            known = {k: shifted.calibration_of(head, tensors) for k, tensors in measured.items()}
            bounds: list[Keys] = [
                {**keys, "bound": method, "confidence": confidence}
                # The mean gap is the same beside all NCs, and has no spread to normalise by.
                for keys in ({"method": "NC", "head": head}, MEAN)[: 1 if i else 2]
                for method in METHODS
                if keys != MEAN or method != "normalised"
                for confidence in CONFIDENCES
            ]
            draw = partial(_draw, config, known[shifted.CALIBRATED], bounds)
            drawn = parts.do(f"{domain.name}: bounds of NC {head}", draw)
            for keys, inside, width in zip(bounds, drawn["inside"], drawn["width"], strict=True):
                rows.append(row("coverage", estimate_mean(inside), **keys))
                if width.isfinite().all():  # of an infinite one there is no mean
                    rows.append(row("width", estimate_mean(width), **keys))
                if keys["bound"] in PAC:
                    good = (inside >= keys["confidence"]).double()
                    rows.append(row("good calibration sets", estimate_mean(good), **keys))
            rows += _shift_rows(partial(row, method="NC", head=head), config.calibration, known)
    facts = parts.facts(networks) | {"digits": config.nc or "the shipped NC"}
    return Outcome(rows, facts=facts)


def _draw(config: Config, learners: Calibration, bounds: list[Keys]) -> dict[str, Tensor]:
    """Draws calibration sets; returns coverage and width of each bound, (bounds, draws)."""
    # They are drawn with replacement from all, so that the share of all inside a bound is exact
    # where it is the same for all; for the normalised bound, which is not, new ones are drawn.
    n, spreads = config.calibration, learners.spread[config.calibration :]
    # The trivial predictor knows the mean gap of as many other learners.
    nc, mean = learners.residuals[n:], learners.true[n:] - learners.true[:n].mean()
    generator, found = stream(config.seed, "draws of calibration sets"), []
    for _ in range(0, config.draws, BLOCK):
        drawn = torch.randint(len(spreads), (BLOCK, 1, n), generator=generator)
        new = torch.randint(len(spreads), (BLOCK, NEW), generator=generator)
        for keys in bounds:
            errors = mean if keys["method"] == MEAN["method"] else nc
            method: Any = keys["bound"]
            each = new if method == "normalised" else new[:, :1]
            sets = drawn.expand(-1, each.shape[1], -1)
            claim: Any = {"confidence": float(keys["confidence"]), "delta": DELTA}
            width = margin(errors[sets], spreads[sets], spreads[each], method=method, **claim)
            if method == "normalised":
                inside = errors[each].abs() <= width
            else:
                everyone = errors.abs().sort().values
                inside = torch.searchsorted(everyone, width, right=True) / len(everyone)
            found.append(torch.stack([inside.double().mean(dim=1), 2 * width.mean(dim=1)]))
    blocks = torch.stack(found).unflatten(0, (-1, len(bounds)))  # (blocks, bounds, 2, BLOCK)
    both = blocks.permute(2, 1, 0, 3).flatten(2)[..., : config.draws]  # (2, bounds, draws)
    return dict(zip(("inside", "width"), both, strict=True))


def _shift_rows(row: Callable[..., Row], n: int, known: dict[str, Calibration]) -> list[Row]:
    """How many learners of each kind raise an alarm, and what a bound does about them."""
    usual = known[shifted.CALIBRATED]
    first: Any = {name: tensor[:n] for name, tensor in usual.tensors().items()}
    calibration = Calibration(**first, names=usual.names, sizes=usual.sizes)
    sets, rows = (calibration.residuals, calibration.spread), []
    for kind, learners in known.items():
        own = slice(n if kind == shifted.CALIBRATED else 0, None)
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
        metrics = {"coverage": "coverage", "width": "width", "good calibration sets": "good sets"}
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
                "Value ± 95 % interval over draws of a calibration set. Coverage: the mean share "
                "of all learners inside. Width: infinite where calibration learners are too few. "
                "Good sets: those whose bound holds for at least the stated share of all learners; "
                f"the claim is {1 - DELTA:g} of them.",
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
    lines, ends = len(domains), (min(CONFIDENCES) - 0.03, 1.0)
    grid = partial(sketch, 8.5, squeeze=False)
    coverage, tops = grid(2.9 * lines + 0.4, lines, len(PREDICTORS), sharex=True, sharey=True)
    widths, bottoms = grid(2.9 * lines + 0.5, lines, len(CONFIDENCES), sharey="row")
    colors = [COLORS[str(keys.get("head", "none"))] for keys in PREDICTORS]
    for domain, top, bottom in zip(domains, tops, bottoms, strict=True):
        for ax, keys, color in zip(top, PREDICTORS, colors, strict=True):
            own = select(rows, **domain, **keys, learners=None)
            ax.set_visible(bool(own))
            ax.plot(ends, ends, color=COLORS["target"], lw=0.8, ls=":")
            finite = [row.keys for row in select(own, "width")]
            for row in select(own, "coverage"):
                if row.keys in finite:
                    place, mark = row.keys["confidence"], MARKS[row.keys["bound"]]
                    ax.plot(place, row.value, mark, ms=5, mfc="none", color=color)
            ax.set(title=f"{domain['domain']}, {label(keys)}", xticks=CONFIDENCES)
            ax.set(xlabel="claimed", ylabel="inside the bound")
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
    hold = "On or above the line the claim is true. What is not drawn is infinite."
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
