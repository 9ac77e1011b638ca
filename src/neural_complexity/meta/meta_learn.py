"""Meta-learning an NC for a user's own tasks, in one call."""

import math
import time
import warnings
from concurrent.futures import Executor
from contextlib import nullcontext
from copy import deepcopy
from dataclasses import asdict, replace
from importlib.metadata import version
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from torch import Tensor

from neural_complexity.files import write_json
from neural_complexity.locks import lock_folder, remove_stale_lock
from neural_complexity.meta import meta_run
from neural_complexity.meta.meta_run import FINISHED, Learner, MetaRun, Plan, Tasks
from neural_complexity.meta.nc_loss import nc_loss
from neural_complexity.meta.scores import belief_loss, compare, describe, make_report, r_squared
from neural_complexity.meta.trainer import meta_train
from neural_complexity.model.card import Card
from neural_complexity.model.judgement import judge, measure
from neural_complexity.model.network import NeuralComplexity
from neural_complexity.progress import ProgressCallback, ProgressDisplay
from neural_complexity.reliability.gap_bounds import needed
from neural_complexity.tasks.splits import ArrayStore, Splits
from neural_complexity.workspace import Workspace

__all__ = ["meta_learn", "most_updates"]

CONFIDENCE = 0.95  # of the bounds that users ask for
EPOCHS = 400  # how often NC sees each point of a dataset: after more, it knows them by heart
FILE, REPORT = "nc.safetensors", "report.json"  # the finished NC, in the folder, and its report
AHEAD = 4  # iterations that an executor may be ahead, where no plan says so
PART = 4096  # points that are noted at a time: bounds memory


def meta_learn(
    tasks: Tasks,
    learner: Learner = None,
    budget: str | float | Plan = "10min",
    *,
    seed: int = 0,
    device: str = "cpu",
    folder: str | Path | None = None,
    progress: bool | ProgressCallback = True,
    executor: Executor | None = None,
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
        budget: The time, as in `"10min"`. A warning says, before it is spent, if it is too short
            for as many held-out learners as a bound needs. Or a `Plan`, which is the same work on
            any machine.
        seed: The one seed of all draws.
        device: Where NC and learners live.
        folder: Where unfinished work is kept; called again, it continues, or returns the finished
            NC.
        progress: Whether to show progress and the report on the standard error; or a callback.
        executor: Trains learners while NC learns from earlier ones: a `meta.executor.ProcessPool`,
            Dask's `client.get_executor()`, a `RayExecutor` or any other, whose workers can import
            `learner`. The NC is that of a plan with the same `lag`, whatever the executor.
        architecture: Fields of `Architecture`, such as `width=256`, or `head="direct"`, the paper's
            head; `"posterior"` if left out.

    Raises:
        BlockingIOError: If another process has the folder.
        TypeError: If tasks or learner are of another kind.
        ValueError: If the budget is no time, tasks are too few, or the folder is of another run.
    """
    start = time.perf_counter()
    given = budget if isinstance(budget, Plan) else meta_run.seconds(budget)
    run = MetaRun(tasks, learner, seed, device, {"head": "posterior", **architecture}, executor)
    work = Workspace(None if folder is None else Path(folder), run.fingerprint)
    # Nobody changes a finished NC any more: its folder need not even be writable.
    used = None if work.folder is None or (work.folder / FILE).exists() else work.folder
    if work.folder is not None and used is None:
        remove_stale_lock(work.folder)  # of a run that was killed as soon as NC was saved
    with nullcontext() if used is None else lock_folder(used):
        if (nc := _finished(run, given, work)) is not None:
            return nc
        nc = _show(run, _plan(run, given, work, start), work, progress, start)
    if not nc.card.report.beats_the_mean_gap:
        warnings.warn(nc.card.report.verdict, stacklevel=2)
    return nc


def most_updates(points: int, shown: int) -> float:
    """Returns after how many updates that show so many points NC has seen a dataset often enough.

    Args:
        points: Of the dataset.
        shown: Points of an update.
    """
    return max(1, EPOCHS * points / shown)


def _show(
    run: MetaRun, plan: Plan, work: Workspace, progress: bool | ProgressCallback, start: float
) -> NeuralComplexity:
    """Does what is planned, with progress and the report on the standard error if wanted."""
    with ProgressDisplay(Console(stderr=True, quiet=progress is not True)) as display:
        callback = progress if callable(progress) else display if progress else None
        nc = _learn(run, plan, work, callback, start)
        if progress is True:
            text = describe(nc.card.report)
            display.console.print(text, markup=False, highlight=False, soft_wrap=True)
    return nc


def _finished(run: MetaRun, given: float | Plan, work: Workspace) -> NeuralComplexity | None:
    """Returns the NC of a folder that has one; refuses that of other settings."""
    if work.folder is None or not (work.folder / FILE).exists():
        return None
    nc = NeuralComplexity.load(work.folder / FILE)
    if nc.card.fingerprint != run.fingerprint:
        raise ValueError(f"{work.folder} must be of the same settings, got others")
    _check_plan(given, Plan(**nc.card.plan), work)
    _finish(nc, work)
    return nc.eval().to(run.device)


def _finish(nc: NeuralComplexity, work: Workspace) -> None:
    """Does what is left when NC is saved, also where a kill came between the two."""
    if work.folder is not None:
        if not (work.folder / REPORT).exists():
            write_json(work.folder / REPORT, nc.card.report.to_json())
        work.remove("training")


def _check_plan(given: float | Plan, begun: Plan, work: Workspace) -> None:
    if isinstance(given, Plan) and given != begun:
        sentence = f"budget must be the plan that {work.folder} was begun with, {begun}"
        raise ValueError(f"{sentence}, got {given}")


def _plan(run: MetaRun, given: float | Plan, work: Workspace, start: float) -> Plan:
    """Returns the plan that was begun, or what was given, or what fits into that time.

    For this, everything is tried once, on a copy of NC.
    """
    begun = work.read("plan")
    if begun is not None:
        kept = Plan(**begun[1])
        _check_plan(given, kept, work)
        return kept
    if isinstance(given, Plan):
        plan = given
    else:
        # Collections are timed as if they were made here: an executor then leaves time over.
        times, probe = [time.perf_counter()], Plan(iterations=2, updates=4, learners=1)
        run.group("validation", 0)
        times.append(time.perf_counter())
        meta = run.meta_learner(deepcopy(run.nc), probe, Workspace(None))  # makes a collection
        times.append(time.perf_counter())
        meta.iterate()
        times.append(time.perf_counter())
        held_out, collecting, updating = (b - a for a, b in pairwise(times))
        learner, most, family = held_out / run.together, math.inf, meta.family
        if isinstance(family, Splits):
            most = most_updates(len(family.pool), meta.training.batch * (family.M + family.N))
        left, updating = max(given - (times[-1] - start), 0.3 * given), updating / probe.updates
        costs = {"collecting": collecting, "updating": updating, "learner": learner}
        if isinstance(family, Splits):  # those that NC is calibrated on come on top
            costs["learner"] *= 1 + 1 / FINISHED
        plan = meta_run.make_plan(left, **costs, most_updates=most)
        if run.executor is not None:
            plan = replace(plan, lag=AHEAD)
        finished = -(-plan.learners // run.together) * run.together // FINISHED
        if finished < (least := needed(CONFIDENCE, "conformal")):
            warnings.warn(
                f"A budget of {given:.0f} s has time for {finished} finished learners that NC is "
                f"calibrated on, at {learner:.2g} s each, and {plan.iterations * plan.updates} "
                f"updates of NC: a bound at {CONFIDENCE:.0%} needs {least} learners",
                stacklevel=3,
            )
    work.write("plan", content=asdict(plan))
    return plan


def _learn(
    run: MetaRun, plan: Plan, work: Workspace, callback: ProgressCallback | None, start: float
) -> NeuralComplexity:
    """Runs Algorithm 2, reports and calibrates; returns the best NC that was met."""
    training, nc = work.sub("training", asdict(plan)), run.nc
    chosen_by = run.learners("validation", plan.chosen_by, callback)
    weights, kept = training.read("best") or ({}, {"loss": math.inf})
    least = kept["loss"]

    @torch.no_grad()
    def score(nc: NeuralComplexity) -> float:
        # The best NC is the one with the least loss of its own on held-out learners, which notices
        # sooner than their R2 when NC becomes too sure of itself.
        nonlocal weights, least
        compared = compare(nc, chosen_by, [judge(nc, snapshot) for snapshot, _ in chosen_by])
        losses = []
        for snapshot, Y_te in chosen_by:
            finite, M = snapshot.finite(), min(snapshot.H_tr.shape[1], nc.card.context_size)
            if finite.any():  # on the training points that NC sees at once
                few, every = (torch.arange(n, device=Y_te.device) for n in (M, Y_te.shape[1]))
                part = snapshot[finite].part(few, every)
                losses.append(nc_loss(nc, part, Y_te[finite]).item())
        loss = sum(losses) / max(1, len(losses))
        if loss < least:
            least, weights = loss, {n: t.detach().clone() for n, t in nc.state_dict().items()}
            training.write("best", weights, {"loss": loss})
        return r_squared(compared["predicted"], compared["true gap"]).item()

    history = meta_train(run.meta_learner(nc, plan, training), score, callback=callback)
    if weights:  # if any had a score
        nc.load_state_dict(weights)
    nc.eval()
    notes = {"scores": [round(s.r2, 4) for s in history if math.isfinite(s.r2)], "seed": run.seed}
    notes |= {"made_by": "meta_learn", "version": version("neural-complexity")}
    _judge(run, plan, callback)
    notes["seconds"] = round(time.perf_counter() - start, 1)
    nc.card = replace(nc.card, notes=notes)
    if work.folder is not None:
        nc.save(work.folder / FILE)
    _finish(nc, work)
    return nc


def _judge(run: MetaRun, plan: Plan, callback: ProgressCallback | None) -> None:
    """Sets NC's card, with a report, and its calibration."""
    nc, splits, learners = run.nc, run.family, run.learners("report", plan.learners, callback)
    judgements = [judge(nc, snapshot) for snapshot, _ in learners]
    report = make_report(compare(nc, learners, judgements))
    card = Card(plan=asdict(plan), fingerprint=run.fingerprint, report=report)
    if not isinstance(splits, Splits):
        # Users ask about learners that were trained to the end.
        ended = [(snapshot[::FINISHED], Y_te[::FINISHED]) for snapshot, Y_te in learners]
        calibration = measure(nc, ended, [judgement[::FINISHED] for judgement in judgements])
    else:
        ended = run.learners("calibration", -(-plan.learners // FINISHED), callback)
        calibration = measure(nc, ended)
        points = sum(len(part) for part in run.held_out.values() if isinstance(part, Tensor))
        classes = splits.store.classes if isinstance(splits.store, ArrayStore) else ()
        # NC may know the points that it learned from by heart.
        learned = card.remember(splits.store(part) for part in splits.pool.split(PART))
        cost = belief_loss(nc, learners)
        card = replace(card, classes=tuple(classes) or None, learned_from=learned, belief_loss=cost)
        shared = f"its learners share {points} points, none of which taught NC, "
        shared += "so that it may hold somewhat less often"
        note = "; ".join(part for part in (calibration.note, shared) if part)
        calibration = replace(calibration, note=note)
    nc.card, nc.calibration = card, calibration
