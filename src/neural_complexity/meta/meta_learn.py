"""Meta-learning an NC for a user's own tasks, in one call."""

import math
import time
import warnings
from collections.abc import Callable
from copy import deepcopy
from dataclasses import asdict, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal

import torch
from rich.console import Console
from torch import Tensor, nn

from neural_complexity.files import write_json
from neural_complexity.learners.fit import Recipe
from neural_complexity.meta.executor import Collection
from neural_complexity.meta.held_out_report import belief_loss, compare, describe, make_report
from neural_complexity.meta.meta_run import MetaRun, batch_size, settle
from neural_complexity.meta.nc_loss import nc_loss
from neural_complexity.meta.plan import FEWEST_CHOSEN_BY, FEWEST_LEARNERS, Plan, make_plan, seconds
from neural_complexity.meta.scores import r_squared
from neural_complexity.meta.sources import FINISHED, SplitSource
from neural_complexity.meta.trainer import Status, meta_train
from neural_complexity.model.card import Card
from neural_complexity.model.judgement import judge, measure
from neural_complexity.model.network import NeuralComplexity
from neural_complexity.progress import ProgressCallback, ProgressDisplay
from neural_complexity.snapshot import Snapshot
from neural_complexity.task import Task, TaskFamily
from neural_complexity.tasks.splits import ArrayStore, Splits
from neural_complexity.workspace import Workspace

__all__ = ["meta_learn"]

EPOCHS = 400  # how often NC sees each point of a dataset: after more, it knows them by heart
PART = 4096  # points that are noted at a time: bounds memory


def meta_learn(
    tasks: Splits | TaskFamily | Task,
    learner: Callable[[], nn.Module] | Recipe | None = None,
    budget: str | float | Plan = "10min",
    *,
    head: Literal["posterior", "direct"] = "posterior",
    seed: int = 0,
    device: str = "cpu",
    folder: str | Path | None = None,
    progress: bool | ProgressCallback = True,
    **architecture: Any,
) -> NeuralComplexity:
    """Meta-learns an NC for a domain, and measures how far it can be trusted there.

    Some tasks, or points of a dataset, are held out: some choose the best NC on the way, the rest
    is for `nc.card.report` and the calibration that bounds need. A warning says when NC cannot beat
    predicting the mean gap.

    Args:
        tasks: What `split_tasks` returns for a dataset; any family of tasks; or a `Task`, all there
            are.
        learner: Builds one freshly initialised network, which is trained with Adam; or a recipe
            with an optimizer and a loss of its own. An MLP with 64 hidden units if `None`.
        budget: The time, as in `"10min"`; at least 48 held-out learners are trained, however short
            it is. Or a `Plan`, which is the same work on any machine.
        head: `"posterior"`, or the paper's `"direct"`.
        seed: The one seed of all draws.
        device: Where NC and learners live.
        folder: Where unfinished work is kept; called again, it continues, or returns the finished
            NC.
        progress: Whether to show progress and the report on the standard error; or a callback.
        architecture: Fields of `Architecture`, such as `width=256`.

    Raises:
        TypeError: If tasks or learner are of another kind.
        ValueError: If the budget is no time, tasks are too few, or the folder is of another run.
    """
    start = time.perf_counter()
    given = budget if isinstance(budget, Plan) else seconds(budget)
    run = settle(tasks, learner, seed, device, {"head": head, **architecture})
    place = None if folder is None else Path(folder)
    if place is not None:
        place.mkdir(parents=True, exist_ok=True)
        finished = _finished(place, run, given)
        if finished is not None:
            return finished.to(device)
    with ProgressDisplay(Console(stderr=True, quiet=progress is not True)) as display:
        callback = progress if callable(progress) else display if progress else None
        nc = _learn(run, given, Workspace(place, run.fingerprint), callback, start)
        if progress is True:
            text = describe(nc.card.report)
            display.console.print(text, markup=False, highlight=False, soft_wrap=True)
    if not nc.card.report.beats_the_mean_gap:
        warnings.warn(nc.card.report.verdict, stacklevel=2)
    return nc


def _learn(
    run: MetaRun,
    given: float | Plan,
    work: Workspace,
    callback: ProgressCallback | None,
    start: float,
) -> NeuralComplexity:
    """Plans, trains, reports and calibrates."""
    plan = _plan(run, given, work, start)
    nc, history = _train(run, plan, work, callback)
    learners = run.held_out("report", plan.learners, callback)
    judgements = [judge(nc, snapshot) for snapshot, _ in learners]
    report = make_report(compare(nc, learners, judgements))
    notes = {"scores": [round(s.r2, 4) for s in history if math.isfinite(s.r2)], "seed": run.seed}
    notes |= {"made_by": "meta_learn", "version": version("neural-complexity")}
    notes["seconds"] = round(time.perf_counter() - start, 1)
    nc.card = replace(_card(run, plan, nc, learners), report=report, notes=notes)
    # Users ask about learners that were trained to the end.
    ended = [(snapshot[::FINISHED], Y_te[::FINISHED]) for snapshot, Y_te in learners]
    calibration = measure(nc, ended, [judgement[::FINISHED] for judgement in judgements])
    nc.calibration = replace(calibration, note=_shared(run, calibration.note))
    if work.folder is not None:
        nc.save(work.folder / "nc.safetensors")
        write_json(work.folder / "report.json", report.to_json())
        work.remove("training")
    return nc


def _plan(run: MetaRun, given: float | Plan, work: Workspace, start: float) -> Plan:
    """Makes a plan, or takes up that of an earlier call."""
    kept = work.read("plan")
    if kept is not None:
        return _same_plan(Plan(**kept[1]), given, work.folder)
    plan = given if isinstance(given, Plan) else _measured_plan(run, given, start)
    work.write("plan", content=asdict(plan))
    return plan


def _same_plan(kept: Plan, given: float | Plan, place: Path | None) -> Plan:
    """Returns the plan that was begun; a budget in time may have become another one."""
    if isinstance(given, Plan) and given != kept:
        raise ValueError(
            f"budget must be the plan that {place} was begun with, {kept}, got {given}"
        )
    return kept


def _measured_plan(run: MetaRun, budget: float, start: float) -> Plan:
    """Tries everything once, on a copy of NC, to see what fits into the budget."""
    began = time.perf_counter()
    run.group("validation", 0)
    learner = (time.perf_counter() - began) / run.together
    probe = Plan(iterations=2, updates=4, learners=1)
    began = time.perf_counter()
    meta = run.meta_learner(deepcopy(run.nc), probe, Workspace(None))  # makes a collection
    collecting = time.perf_counter() - began
    began = time.perf_counter()
    meta.iterate()
    updating = (time.perf_counter() - began) / probe.updates
    least = (FEWEST_LEARNERS + FEWEST_CHOSEN_BY) * learner
    if least > budget:
        warnings.warn(
            f"Held-out learners alone will take about {least:.0f} s, more than the budget of "
            f"{budget:.0f} s",
            stacklevel=4,
        )
    left = max(budget - (time.perf_counter() - start), 0.3 * budget)
    costs = {"collecting": collecting, "updating": updating, "learner": learner}
    return make_plan(left, **costs, most_updates=_most_updates(run))


def _most_updates(run: MetaRun) -> float:
    """Returns after how many updates NC has seen the points of a dataset often enough."""
    family = run.source.family
    if not isinstance(family, Splits):
        return math.inf
    points = batch_size(run.nc) * (family.M + family.N)  # of an update
    return max(1, EPOCHS * len(family.pool) / points)


def _train(
    run: MetaRun, plan: Plan, work: Workspace, callback: ProgressCallback | None
) -> tuple[NeuralComplexity, list[Status]]:
    """Runs Algorithm 2 and returns the best NC that was met."""
    training = work.sub("training", asdict(plan))
    best = _Best(run.held_out("validation", plan.chosen_by, callback), training)
    learner = run.meta_learner(run.nc, plan, training)
    history = meta_train(learner, best, callback=callback)
    return best.restore(run.nc).eval(), history


class _Best:
    """Scores NC and keeps the best weights, also through interruptions.

    The best is the one with the least loss of its own on held-out learners, which notices sooner
    than their R2 when NC becomes too sure of itself.
    """

    def __init__(self, learners: list[Collection], work: Workspace) -> None:
        self.learners, self.work = learners, work
        weights, content = work.read("best") or ({}, {"loss": math.inf})
        self.loss, self.weights = content["loss"], weights

    @torch.no_grad()
    def __call__(self, nc: NeuralComplexity) -> float:
        """Returns the R2 on held-out learners."""
        judgements = [judge(nc, snapshot) for snapshot, _ in self.learners]
        compared = compare(nc, self.learners, judgements)
        groups = (_few(group, nc) for group in self.learners)
        losses = [nc_loss(nc, *group).item() for group in groups if group is not None]
        loss = sum(losses) / max(1, len(losses))
        if loss < self.loss:
            self.loss = loss
            self.weights = {name: t.detach().clone() for name, t in nc.state_dict().items()}
            self.work.write("best", self.weights, {"loss": loss})
        return r_squared(compared["predicted"], compared["true gap"]).item()

    def restore(self, nc: NeuralComplexity) -> NeuralComplexity:
        """Returns NC with the best weights, or as it is if none had a score."""
        if self.weights:
            nc.load_state_dict(self.weights)
        return nc


def _few(group: Collection, nc: NeuralComplexity) -> tuple[Snapshot, Tensor] | None:
    """Returns learners that did not diverge, on the training points that NC sees at once."""
    snapshot, Y_te = group
    finite = snapshot.finite()
    if not finite.any():
        return None
    every = torch.arange(snapshot.H_te.shape[1], device=Y_te.device)
    few = torch.arange(snapshot.H_tr.shape[1], device=Y_te.device)[: nc.card.context_size]
    return snapshot[finite].part(few, every), Y_te[finite]


def _shared(run: MetaRun, note: str) -> str:
    """Returns the note of a calibration, with what keeps its learners from being independent."""
    if not isinstance(run.source, SplitSource):
        return note
    points = len(run.source.held_out["report"])
    shared = (
        f"its learners share {points} held-out test points, so that it may hold somewhat less often"
    )
    return "; ".join(part for part in (note, shared) if part)


def _learned_from(splits: Splits) -> str:
    return Card().remember(splits.store(part) for part in splits.pool.split(PART))


def _finished(folder: Path, run: MetaRun, given: float | Plan) -> NeuralComplexity | None:
    path = folder / "nc.safetensors"
    if not path.exists():
        return None
    nc = NeuralComplexity.load(path)
    if nc.card.fingerprint != run.fingerprint:
        raise ValueError(f"{folder} must be of the same settings, got others")
    _same_plan(Plan(**nc.card.plan), given, folder)
    return nc.eval()


def _card(run: MetaRun, plan: Plan, nc: NeuralComplexity, learners: list[Collection]) -> Card:
    card = Card(plan=asdict(plan), fingerprint=run.fingerprint)
    family = run.source.family
    if not isinstance(family, Splits):
        return card
    # NC may know the points that it learned from by heart.
    classes = family.store.classes if isinstance(family.store, ArrayStore) else ()
    return replace(
        card,
        classes=tuple(classes) or None,
        learned_from=_learned_from(family),
        belief_loss=belief_loss(nc, learners),
    )
