"""Meta-learning an NC for a user's own tasks, in one call."""

import json
import math
import re
import time
import warnings
from collections.abc import Callable
from copy import deepcopy
from dataclasses import asdict, dataclass, replace
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal

import torch
from rich.console import Console
from torch import Tensor, nn
from torch.optim import Adam

from neural_complexity.files import read_json, write_json
from neural_complexity.learners.batched import stack
from neural_complexity.learners.networks import Affine, image_mlp, mlp
from neural_complexity.learners.recipe import Recipe
from neural_complexity.losses import cross_entropy, squared_error
from neural_complexity.meta.executor import Collection, Here
from neural_complexity.meta.held_out_report import belief_loss, describe, judge_all, make_report
from neural_complexity.meta.plan import (
    FEWEST_CHOSEN_BY,
    FEWEST_LEARNERS,
    Plan,
    make_plan,
    seconds,
)
from neural_complexity.meta.scores import r_squared
from neural_complexity.meta.sources import (
    FINISHED,
    Ground,
    Part,
    SplitGround,
    TaskGround,
    TaskList,
    split_ground,
)
from neural_complexity.meta.trainer import MetaLearner, nc_loss
from neural_complexity.meta.training_loop import Moment, Resume, meta_train, tell_moments
from neural_complexity.model.network import SHOWN, NeuralComplexity
from neural_complexity.model.training_points import LEARNED, remember
from neural_complexity.progress import ProgressDisplay, Tell
from neural_complexity.seeding import seeded, stream
from neural_complexity.snapshot import Snapshot
from neural_complexity.task import Task, TaskFamily, digest
from neural_complexity.tasks.split_tasks import Points
from neural_complexity.tasks.splits import Splits

__all__ = ["meta_learn"]

STEPS = 300  # of a learner of which only the network is given
BATCH = 32  # training points of its step, on splits
SCORES = 20  # looks at NC on its way, of which the best is kept
EPOCHS = 400  # how often NC sees each point of a dataset: after more, it knows them by heart
PART = 4096  # points that are noted at a time: bounds memory
EXAMPLES = 64  # tasks that NC takes its units from
# What NC is for labels and for real targets; every field can be given another value.
FOR_LABELS: dict[str, Any] = {"width": 96, "heads": 4, "encoder_layers": 2, "decoder_layers": 2}
FOR_REALS: dict[str, Any] = {"width": 128, "heads": 4}
CLIP = 3.0  # features that hardly ever change would tell points apart by themselves


@dataclass(frozen=True, eq=False)
class _Work:
    """All that is settled before NC learns."""

    ground: Ground
    recipe: Recipe
    nc: NeuralComplexity
    together: int  # learners that run at once
    seed: int
    device: str
    identity: str  # names all that decides the result but the plan

    def held_out(self, part: Part, learners: int, tell: Tell | None) -> list[Collection]:
        """Trains held-out learners, at least so many."""
        start, groups = time.perf_counter(), []
        wanted = -(-min(learners, self.ground.most(part)) // self.together)
        for index in range(wanted):
            groups.append(self.group(part, index))
            if tell is not None:
                done = (index + 1) * self.together
                spent = time.perf_counter() - start
                tell(f"learners for {part}", done, wanted * self.together, spent, {})
        return groups

    def group(self, part: Part, index: int) -> Collection:
        """Trains those that run at once."""
        return self.ground.learners(
            self.recipe,
            part,
            tasks=min(self.together, self.ground.most(part)),
            seed=self.seed,
            index=index,
            device=self.device,
        )

    def meta_learner(
        self, nc: NeuralComplexity, plan: Plan, bank: Path | None, resume: Resume | None
    ) -> MetaLearner:
        """Makes what runs Algorithm 2."""
        collector = self.ground.collector(
            self.recipe, tasks=self.together, seed=self.seed, device=self.device
        )
        return MetaLearner(
            nc,
            self.ground.family,
            seed=self.seed,
            iterations=plan.iterations,
            updates=plan.updates,
            batch=_batch(nc),
            lr=0.002,
            capacity=8192,
            made_up=0.5 if nc.labels else 0.0,
            engine=Here(collector),
            bank_folder=bank,
            keep=0 if bank is None else _save_every(plan),
            resume=resume,
        )


def meta_learn(
    tasks: Splits | TaskFamily | Task,
    learner: Callable[[], nn.Module] | Recipe | None = None,
    budget: str | float | Plan = "10min",
    *,
    head: Literal["posterior", "direct"] = "posterior",
    seed: int = 0,
    device: str = "cpu",
    folder: str | Path | None = None,
    progress: bool = True,
    tell: Tell | None = None,
    **architecture: Any,
) -> NeuralComplexity:
    """Meta-learns an NC for a domain, and finds out how far it can be trusted there.

    Some tasks, or some points of a dataset that is split into tasks, are kept from NC. Of these a
    part chooses the best NC on the way; the rest is for the report in `nc.provenance["report"]`,
    and for the calibration that bounds need. A warning says when NC cannot beat predicting the
    mean gap.

    Args:
        tasks: What `split_tasks` makes of a dataset; or any family of tasks; or tasks of one size
            that are all there are.
        learner: Builds one freshly initialised network; it is then trained with Adam. Or a recipe
            with an optimizer, a loss and an objective (such as one that augments) of its own. An
            MLP with 64 hidden units if `None`.
        budget: The time for all of it, as in `"10min"`; or a `Plan`, which is the same work on any
            machine. However short the time, 48 held-out learners are trained; and a small dataset
            may not need all of it.
        head: `"posterior"`, or the paper's `"direct"`.
        seed: The one seed of all draws.
        device: Where NC and learners live.
        folder: Where unfinished work is kept. Called again, it goes on; when all is done, it gives
            the NC that is there.
        progress: Whether to show progress and the report on the standard error.
        tell: Told about the progress instead.
        architecture: Other arguments of `NeuralComplexity`, such as `width=256`.

    Returns:
        NC in evaluation mode, calibrated, on the device.

    Raises:
        TypeError: If tasks or learner are of another kind.
        ValueError: If the budget is no time, there are too few tasks, or the folder is of another
            run.

    Example:
        ```python
        nc = meta_learn(split_tasks(X, y), learner=make_model, budget="10min")
        nc.save("my-domain.safetensors")
        ```
    """
    start = time.perf_counter()
    given = budget if isinstance(budget, Plan) else seconds(budget)
    work = _settle(tasks, learner, head, seed, device, architecture)
    place = None if folder is None else Path(folder)
    if place is not None:
        place.mkdir(parents=True, exist_ok=True)
        finished = _finished(place, work, given)
        if finished is not None:
            return finished.to(device)
    progress = progress and tell is None
    with ProgressDisplay(Console(stderr=True, quiet=not progress)) as display:
        tell = display if progress else tell
        plan = _plan(work, given, place, start)
        validation = work.held_out("validation", plan.chosen_by, tell)
        nc, history = _train(work, plan, validation, place, tell)
        learners = work.held_out("report", plan.learners, tell)
        report = make_report(judge_all(nc, learners))
        if progress:
            display.console.print(describe(report), markup=False, highlight=False, soft_wrap=True)
    nc.provenance = _provenance(work, plan, history, report, time.perf_counter() - start)
    if isinstance(work.ground, SplitGround):  # NC may know the points that it learned from by heart
        _remember(nc, work.ground.family)
        nc.provenance["belief_loss"] = belief_loss(nc, learners)
    nc.calibrate([_finished_ones(group) for group in learners])
    assert nc.calibration is not None
    nc.calibration = replace(nc.calibration, note=_shared(work, nc.calibration.note))
    if place is not None:
        nc.save(place / "nc.safetensors")
        write_json(place / "report.json", report)
    if not report.get("beats_the_mean_gap", False):
        warnings.warn(report["verdict"], stacklevel=2)
    return nc


def _settle(
    tasks: Splits | TaskFamily | Task,
    learner: Callable[[], nn.Module] | Recipe | None,
    head: Literal["posterior", "direct"],
    seed: int,
    device: str,
    architecture: dict[str, Any],
) -> _Work:
    ground = _make_ground(tasks, seed)
    example = ground.family.sample(EXAMPLES, stream(seed, "units"))
    labels = not example.Y_tr.is_floating_point()
    outputs = _outputs(ground.family, example, labels)
    if learner is None:
        learner = _default_learner(example, outputs, labels)
    recipe = _make_recipe(learner, tuple(example.X_tr.shape[2:]), outputs, labels)
    together = _together(recipe, example, 8 if isinstance(tasks, Splits) else 64)
    own = {"clip": CLIP, **(FOR_LABELS if labels else FOR_REALS)}
    if example.X_tr.ndim == 5:
        del own["clip"]  # the pixels of an image share one scale
        least = min(example.X_tr.shape[-2:])
        own = {**own, "channels": 32, "image_layers": min(3, max(1, int(math.log2(least))))}
    with seeded(seed, "weights"):
        nc = NeuralComplexity.for_tasks(
            example, **{"head": head, "outputs": outputs, **own, **architecture}
        ).to(device)
    identity = _identity(ground.family, example, recipe, nc, seed)
    return _Work(ground, recipe, nc, together, seed, device, identity)


def _make_ground(tasks: Splits | TaskFamily | Task, seed: int) -> Ground:
    if isinstance(tasks, Splits):
        return split_ground(tasks, seed=seed, batch=BATCH)
    if isinstance(tasks, Task):
        if len(tasks) < 10:
            raise ValueError(f"tasks must be at least 10, to keep some from NC, got {len(tasks)}")
        order = torch.randperm(len(tasks), generator=stream(seed, "held out"))
        few = max(1, len(tasks) // 10)
        parts = order.split([len(tasks) - 3 * few, few, 2 * few])
        own, validation, report = (TaskList(tasks[rows]) for rows in parts)
        return TaskGround(own, {"validation": validation, "report": report})
    if not callable(getattr(tasks, "sample", None)) or hasattr(tasks, "columns"):  # no data frame
        raise TypeError(
            "tasks must be made by split_tasks, be a family of tasks or a Task, got "
            f"{type(tasks).__name__}"
        )
    return TaskGround(tasks, {"validation": tasks, "report": tasks})


def _outputs(family: TaskFamily, example: Task, labels: bool) -> int:
    if isinstance(family, Splits) and isinstance(family.store, Points):
        return family.store.outputs
    if isinstance(family, Splits):
        return int(family.store.labels.max()) + 1
    if labels:
        return int(torch.stack([example.Y_tr.max(), example.Y_te.max()]).max()) + 1
    return example.Y_tr.shape[-1]


def _default_learner(example: Task, outputs: int, labels: bool) -> Callable[[], nn.Module]:
    """Gives an MLP that sees inputs of one scale, and answers in the targets' own."""
    shape = tuple(example.X_tr.shape[2:])
    if len(shape) == 3:
        return partial(image_mlp, shape, (64,), outputs)
    scale, mean = torch.std_mean(example.X_tr.flatten(0, 1), dim=0)
    scale = torch.where(scale > 0, scale, 1.0)
    y_scale, y_mean = torch.ones(outputs), torch.zeros(outputs)
    if not labels:
        y_scale, y_mean = torch.std_mean(example.Y_tr.flatten(0, 1), dim=0)
    return partial(_standardized, (1 / scale, -mean / scale), (y_scale, y_mean), outputs)


def _standardized(
    before: tuple[Tensor, Tensor], after: tuple[Tensor, Tensor], outputs: int
) -> nn.Module:
    return nn.Sequential(Affine(*before), mlp(len(before[0]), (64,), outputs), Affine(*after))


def _make_recipe(
    learner: Callable[[], nn.Module] | Recipe,
    shape: tuple[int, ...],
    outputs: int,
    labels: bool,
) -> Recipe:
    """Gives how learners learn, once it is sure that they can."""
    if isinstance(learner, Recipe):
        recipe = learner
    else:
        loss = cross_entropy if labels else squared_error
        recipe = Recipe(
            make=learner, loss=loss, steps=STEPS, lr=0.003, optimizer=partial(Adam, fused=True)
        )
    if isinstance(recipe.make, nn.Module) or not callable(recipe.make):
        raise TypeError(
            "learner must build a network when called, not be one, got "
            f"{type(recipe.make).__name__}"
        )
    with torch.random.fork_rng(devices=[]):
        h = recipe.make()
    if not isinstance(h, nn.Module):
        raise TypeError(f"learner must build a torch.nn.Module when called, got {type(h).__name__}")
    got = _shape_of_predictions(h.eval(), torch.zeros(2, *shape))
    if got != f"{(2, outputs)}":
        raise ValueError(
            f"learner must map inputs {(2, *shape)} to predictions {(2, outputs)}, got {got}"
        )
    return recipe


@torch.no_grad()
def _shape_of_predictions(h: nn.Module, X: Tensor) -> str:
    try:
        H = h(X)
    except Exception as error:  # the network is the user's and may raise anything
        return f"{type(error).__name__}: {error}"
    return f"{tuple(H.shape)}" if isinstance(H, Tensor) else type(H).__name__


def _together(recipe: Recipe, example: Task, many: int) -> int:
    """Tells how many learners run at once: one, if their network cannot be batched."""
    h = stack(recipe.make, 2, stream(0, "probe"))
    X = example.X_tr[:2]
    try:
        h(X).square().sum().backward()
    except RuntimeError:  # what vmap cannot do: branch on values, or change a buffer in place
        return 1
    return many


def _plan(work: _Work, given: float | Plan, folder: Path | None, start: float) -> Plan:
    """Makes a plan, or takes up that of an earlier call."""
    path = None if folder is None else folder / "plan.json"
    if path is not None and path.exists():
        kept = read_json(path)
        if kept.pop("identity", None) != work.identity:
            raise ValueError(f"{folder} must be of the same tasks and settings, got others")
        return _same_plan(Plan(**kept), given, path.parent)
    plan = given if isinstance(given, Plan) else _measured_plan(work, given, start)
    if path is not None:
        write_json(path, {**asdict(plan), "identity": work.identity})
    return plan


def _same_plan(kept: Plan, given: float | Plan, place: Path) -> Plan:
    """Gives the plan that was begun; a budget in time may have become another one."""
    if isinstance(given, Plan) and given != kept:
        raise ValueError(
            f"budget must be the plan that {place} was begun with, {kept}, got {given}"
        )
    return kept


def _measured_plan(work: _Work, budget: float, start: float) -> Plan:
    """Tries everything once, on a copy of NC, to see what fits into the budget."""
    began = time.perf_counter()
    work.group("validation", 0)
    learner = (time.perf_counter() - began) / work.together
    probe = Plan(iterations=2, updates=4, learners=1)
    began = time.perf_counter()
    meta = work.meta_learner(deepcopy(work.nc), probe, None, None)  # makes the first collection
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
    return make_plan(
        left,
        collecting=collecting,
        updating=updating,
        learner=learner,
        most_updates=_most_updates(work),
    )


def _most_updates(work: _Work) -> float:
    """Tells when NC has seen the points of a dataset often enough."""
    family = work.ground.family
    if not isinstance(family, Splits):
        return math.inf
    points = _batch(work.nc) * (family.M + family.N)  # of an update
    return max(1, EPOCHS * len(family.pool) / points)


def _batch(nc: NeuralComplexity) -> int:
    """Gives the rows of an update of NC."""
    return 8 if nc.labels else 32


def _save_every(plan: Plan) -> int:
    return max(1, plan.iterations // 20)


def _train(
    work: _Work, plan: Plan, validation: list[Collection], folder: Path | None, tell: Tell | None
) -> tuple[NeuralComplexity, list[Moment]]:
    """Runs Algorithm 2 and gives the best NC that was met."""
    best = _Best(validation, None if folder is None else folder / "best.safetensors")
    history = meta_train(
        partial(work.meta_learner, work.nc, plan),
        validate=best,
        validate_every=max(1, plan.iterations // SCORES),
        save_every=_save_every(plan),
        folder=None if folder is None else folder / "training",
        identity=work.identity + json.dumps(asdict(plan)),
        watch=tell_moments(tell, "NC"),
    )
    return best.take(work.nc).eval(), history


class _Best:
    """Scores NC and remembers the best one, also through interruptions.

    The best is the one with the least loss of its own on held-out learners, which notices sooner
    than their R2 when NC becomes too sure of itself.
    """

    def __init__(self, learners: list[Collection], path: Path | None) -> None:
        self.learners, self.path = learners, path
        self.loss, self.weights = math.inf, dict[str, Tensor]()
        if path is not None and path.exists():
            kept = NeuralComplexity.load(path)
            self.loss, self.weights = kept.provenance["loss"], kept.state_dict()

    @torch.no_grad()
    def __call__(self, nc: NeuralComplexity) -> float:
        """Gives the R2 on held-out learners."""
        judged = judge_all(nc, self.learners)
        groups = (_few(group, nc) for group in self.learners)
        losses = [nc_loss(nc, *group).item() for group in groups if group is not None]
        loss = sum(losses) / max(1, len(losses))
        if loss < self.loss:
            self.loss = loss
            self.weights = {name: t.detach().clone() for name, t in nc.state_dict().items()}
            if self.path is not None:
                nc.provenance = {"loss": loss}
                nc.save(self.path)
        return r_squared(judged["predicted"], judged["true gap"]).item()

    def take(self, nc: NeuralComplexity) -> NeuralComplexity:
        """Gives NC the weights of the best, or leaves it as it is if none had a score."""
        if self.weights:
            nc.load_state_dict(self.weights)
        return nc


def _finished_ones(group: Collection) -> Collection:
    """Takes the learners that were trained to the end, which users ask about."""
    snapshot, Y_te = group
    return snapshot[::FINISHED], Y_te[::FINISHED]


def _shared(work: _Work, note: str) -> str:
    """Says what keeps calibration learners from being independent."""
    if not isinstance(work.ground, SplitGround):
        return note
    points = len(work.ground.held["report"])
    shared = (
        f"its learners share {points} held-out test points, so that it may hold somewhat less often"
    )
    return "; ".join(part for part in (note, shared) if part)


def _few(group: Collection, nc: NeuralComplexity) -> Collection | None:
    """Takes of each learner that did not diverge the training points that NC sees at once."""
    snapshot, Y_te = group
    fine = (snapshot.H_tr.flatten(1).sum(dim=1) + snapshot.H_te.flatten(1).sum(dim=1)).isfinite()
    if not fine.any():
        return None
    m = slice(None, nc.shown)
    X_tr, Y_tr, H_tr, X_te, H_te = snapshot[fine].tensors()
    return Snapshot(X_tr[:, m], Y_tr[:, m], H_tr[:, m], X_te, H_te), Y_te[fine]


def _identity(
    family: TaskFamily, example: Task, recipe: Recipe, nc: NeuralComplexity, seed: int
) -> str:
    """Names all that decides the result but the plan, as far as it can be told.

    Of what has no name of its own, such as somebody's family or loss, that is its kind; a family
    also shows in its tasks.
    """
    with torch.random.fork_rng(devices=[]):
        shapes = [list(p.shape) for p in recipe.make().parameters()]
    tasks = digest(example.X_tr, example.Y_tr, example.X_te, example.Y_te)
    loss = getattr(recipe.loss, "name", recipe.loss)
    named = [family, loss, recipe.optimizer, recipe.objective]
    kinds = [re.sub(r" at 0x[0-9a-f]+", "", repr(thing)) for thing in named]
    numbers = [seed, recipe.steps, recipe.lr, recipe.sharpness]
    return json.dumps([*kinds, tasks, nc.architecture, *numbers, shapes])


def _remember(nc: NeuralComplexity, splits: Splits) -> None:
    remember(nc, map(splits.look_up, splits.pool.split(PART)))


def _finished(folder: Path, work: _Work, given: float | Plan) -> NeuralComplexity | None:
    path = folder / "nc.safetensors"
    if not path.exists():
        return None
    nc = NeuralComplexity.load(path)
    if nc.provenance.get("identity") != work.identity:
        raise ValueError(f"{folder} must be of the same tasks and settings, got others")
    _same_plan(Plan(**nc.provenance["plan"]), given, folder)
    if isinstance(work.ground, SplitGround) and LEARNED not in nc.provenance:
        _remember(nc, work.ground.family)  # it was made before this was noted
    return nc.eval()


def _provenance(
    work: _Work, plan: Plan, history: list[Moment], report: dict[str, Any], spent: float
) -> dict[str, Any]:
    family = work.ground.family
    made: dict[str, Any] = {
        "made_by": "meta_learn",
        "version": version("neural-complexity"),
        "seed": work.seed,
        "plan": asdict(plan),
        "seconds": round(spent, 1),
        "scores": [round(m.r2, 4) for m in history if math.isfinite(m.r2)],
        "report": report,
        "identity": work.identity,
    }
    if isinstance(family, Splits):
        made["shown"] = SHOWN
        if isinstance(family.store, Points) and family.store.classes:
            made["classes"] = list(family.store.classes)
    return made
