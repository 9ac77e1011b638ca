"""What the library computes from fixed seeds, behind functions that know where things are.

Only this file has to follow when names move; it reads the layout of the recording (commit dda8120)
and every later one. `record.py` writes what it returns, `tests/test_golden.py` compares,
and `tests/experiments/test_all.py` the rows of experiments.
"""

import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.datasets import load_digits
from sklearn.naive_bayes import GaussianNB
from torch import Tensor, nn

from neural_complexity import MetaLearner, NeuralComplexity, Recipe, Sinusoids, mlp, stream

FOLDER = Path(__file__).parent
EXPERIMENTS = [
    *("sinusoid", "regularizers", "ood", "simple", "maml", "curves", "search", "harm", "omniglot"),
    *("ablation", "surfaces", "single", "dataset_size", "single_curves", "capacity", "bounds"),
    *("own", "pretraining", "tables", "tilts", "few_labels"),
]


def golden(name: str) -> dict[str, Any]:
    """Returns the golden values of a kind."""
    content: dict[str, Any] = json.loads((FOLDER / f"{name}.json").read_text())
    return content


# Where things are


def presets(name: str) -> dict[str, dict[str, Any]]:
    """Returns the settings of each preset of an experiment, as JSON has them."""
    found: dict[str, Callable[[], Any]] = _experiment(name)[0]
    return {preset: json.loads(json.dumps(asdict(make()))) for preset, make in found.items()}


def smoke_config(name: str, **changes: Any) -> Any:
    """Returns the config of the preset `smoke`."""
    return replace(_experiment(name)[0]["smoke"](), **changes)


def run(name: str, config: Any, folder: Path | None = None, callback: Any = None) -> Any:
    """Runs an experiment and returns its outcome."""
    return _experiment(name)[1](config, folder, callback)


def _experiment(name: str) -> tuple[dict[str, Callable[[], Any]], Callable[..., Any]]:
    module = import_module(f"neural_complexity.experiments.{name}")
    if not hasattr(module, "EXPERIMENT"):
        return module.PRESETS, lambda c, folder, tell: module.run(c, folder=folder, tell=tell)
    from neural_complexity.workspace import Workspace, fingerprint

    own = module.EXPERIMENT
    return dict(own.presets), lambda config, folder, callback: own.run(
        config, Workspace(folder, fingerprint(config)), callback
    )


def row_numbers(rows: Iterable[Any]) -> list[dict[str, Any]]:
    """Returns what rows say, under whatever keys."""
    return [{k: getattr(row, k) for k in ("metric", "value", "ci95", "n", "paper")} for row in rows]


def plain(X: Any) -> Tensor:
    """Returns inputs as numbers, be they values or indices into a store."""
    return X if isinstance(X, Tensor) else X.indices


# What is computed


def shipped_predictions(name: str) -> dict[str, Any]:
    """Returns what a shipped NC says about fixed learners, in double precision on any processor."""
    nc = NeuralComplexity.pretrained(name).double()
    sets = [t.double() if t.is_floating_point() else t for t in shipped_inputs(name)]
    found: dict[str, Any] = {}
    for method in ("predict", "predict_points", "predict_loss", "predict_accuracy"):
        try:
            found[method] = getattr(nc, method)(*sets).tolist()
        except ValueError as error:  # not every head and loss has an accuracy
            found[method] = str(error)
    X_tr, Y_tr, _, X_te, H_te = sets
    try:
        classes = {} if Y_tr.is_floating_point() else {"classes": H_te.shape[-1]}
        found["belief"] = nc.belief(X_tr, Y_tr, X_te, **classes).prediction.tolist()
    except ValueError as error:
        found["belief"] = str(error)
    return found


def shipped_inputs(name: str) -> list[Tensor]:
    """Returns X_tr, Y_tr, H_tr, X_te and H_te of learners of the kind that an NC was made for."""
    generator = stream(7, "golden", name)

    def noise(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64).float()

    if "sinusoid" in name:
        X_tr, X_te = 3 * noise(4, 10, 1), 3 * noise(4, 12, 1)
        amplitude, phase = 1 + noise(4, 1, 1).abs(), noise(4, 1, 1)
        Y_tr, Y_te = (amplitude * torch.sin(X + phase) for X in (X_tr, X_te))
        H = [Y + torch.linspace(0, 2, 4)[:, None, None] * noise(*Y.shape) for Y in (Y_tr, Y_te)]
        return [X_tr, Y_tr, H[0], X_te, H[1]]
    C, B = 10, 2
    Y_tr, Y_te = torch.arange(C).repeat(B, 2), torch.arange(C).repeat(B, 1)
    if "omniglot" in name:
        coarse = noise(B, C, 1, 7, 7)  # one blob per class
        blobs = nn.functional.interpolate(coarse.flatten(0, 1), size=28, mode="nearest")
        blobs = blobs.unflatten(0, (B, C))
        X_tr = (blobs.repeat(1, 2, 1, 1, 1) + noise(B, 2 * C, 1, 28, 28) > 0.5).float()
        X_te = (blobs + noise(B, C, 1, 28, 28) > 0.5).float()
    else:
        digits = _digits()
        X_tr, X_te = digits[0][: 4 * C].unflatten(0, (B, -1)), digits[0][100 : 100 + 2 * C]
        X_te = X_te.unflatten(0, (B, -1))
        Y_tr, Y_te = (
            digits[1][: 4 * C].unflatten(0, (B, -1)),
            digits[1][100 : 100 + 2 * C].unflatten(0, (B, -1)),
        )
    H_tr = 4 * nn.functional.one_hot(Y_tr, C) + noise(*Y_tr.shape, C)
    return [X_tr, Y_tr, H_tr, X_te, 2 * nn.functional.one_hot(Y_te, C) + noise(*Y_te.shape, C)]


def _digits() -> tuple[Tensor, Tensor]:
    found = load_digits()
    return torch.from_numpy(found.data / 16).float(), torch.from_numpy(found.target).long()


def assessments() -> dict[str, dict[str, Any]]:
    """Returns the numbers of `assess` about a scikit-learn model and about a function."""
    X, y = (t.numpy() for t in _digits())
    model = GaussianNB(var_smoothing=0.3).fit(X[:200], y[:200])
    grid = np.linspace(-4, 4, 12)[:, None]
    found = {
        "digits": NeuralComplexity.pretrained("digits").assess(model, X[:200], y[:200], X[900:960]),
        "sinusoid": NeuralComplexity.pretrained("sinusoid").assess(
            torch.cos, grid[::2], np.sin(grid[::2]), grid[1::2]
        ),
        "sinusoid-direct": NeuralComplexity.pretrained("sinusoid-direct").assess(
            torch.cos, grid[::2], np.sin(grid[::2]), grid[1::2]
        ),
    }
    kept = ("gap", "loss", "loss_tr", "loss_te", "accuracy_tr", "accuracy_te", "spread", "trust")
    return {
        name: {
            **{key: getattr(one, key) for key in kept},
            "bound": None if one.bound is None else [one.bound.low, one.bound.high],
            "worst": one.worst(),
            "points": one.points.tolist(),
        }
        for name, one in found.items()
    }


def tiny_training(head: str) -> dict[str, Any]:
    """Returns what a seeded tiny meta-training on vectors leaves: losses, bank rows, weights."""
    family = Sinusoids(train_points=5, test_points=7)
    recipe = Recipe(make=partial(mlp, 1, (8, 8), 1), steps=3, lr=0.05)
    with _double():
        nc = NeuralComplexity.for_tasks(family.sample(64, stream(0, "units")), head=head, width=16)
        sizes: dict[str, Any] = {"iterations": 6, "updates": 4, "batch": 16, "tasks": 8, "lr": 0.01}
        return _trained(MetaLearner(nc, family, recipe, seed=0, capacity=150, **sizes))


def tiny_image_training(head: str, few_shot: Any) -> dict[str, Any]:
    """Returns the same of images by index."""
    recipe_loss = import_module("neural_complexity").cross_entropy
    recipe = Recipe(make=_flat, loss=recipe_loss, steps=3, lr=0.5)
    with _double():
        nc = NeuralComplexity.for_tasks(
            _values(few_shot.sample(64, stream(0, "units"))),
            head=head,
            loss="cross_entropy",
            width=8,
            channels=4,
            image_layers=2,
        )
        sizes: dict[str, Any] = {"iterations": 6, "updates": 4, "batch": 16, "tasks": 8, "lr": 0.01}
        more: dict[str, Any] = {"capacity": 150, "pseudo_predictions": 0.5, "run": 4}
        return _trained(MetaLearner(nc, few_shot, recipe, seed=0, **sizes, **more))


def _values(task: Any) -> Any:
    return task.loaded() if hasattr(task, "loaded") else task


def _flat() -> nn.Module:
    return nn.Sequential(nn.Flatten(), mlp(49, (8,), 3))


@contextmanager
def _double() -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        yield
    torch.set_default_dtype(before)


def _trained(meta: MetaLearner) -> dict[str, Any]:
    losses = []
    while not meta.done:
        meta.iterate()
        losses.append(meta.loss)
    snapshot, Y_te = meta.bank.sample(64, stream(1, "golden bank"))
    fields = {n: plain(getattr(snapshot, n)) for n in ("X_tr", "Y_tr", "H_tr", "X_te", "H_te")}
    fields["Y_te"] = Y_te
    weights = torch.cat([p.detach().flatten() for p in meta.nc.parameters()]).double()
    return {
        "losses": losses,
        "count": meta.bank.count,
        "bank": {name: summary(field) for name, field in fields.items()},
        "weights": summary(weights),
    }


def summary(tensor: Tensor) -> list[float]:
    """Returns a few numbers that change with almost any change of a tensor."""
    flat = tensor.detach().double().flatten()
    ramp = torch.linspace(-1, 1, len(flat), dtype=torch.float64)
    some = flat[:: max(1, len(flat) // 5)][:5]
    return [flat.sum().item(), flat.abs().sum().item(), (flat * ramp).sum().item(), *some.tolist()]


def resumed(folder: Path) -> dict[str, Any]:
    """Returns what a tiny run of `sinusoid`, interrupted in training and resumed, leaves."""
    whole = smoke_config("sinusoid")
    # A checkpoint every other iteration: after 11 the bank has to go back.
    small = {"width": 16, "tasks": 4, "updates": 1, "iterations": 40}
    config = replace(
        whole,
        eval_tasks=32,
        posterior=replace(whole.posterior, **small),
        direct=replace(whole.direct, **small),
    )

    def interrupt(stage: str, done: int, *_: object) -> None:
        if stage == "direct" and done == 11:
            raise KeyboardInterrupt

    try:
        run("sinusoid", config, folder, interrupt)
    except KeyboardInterrupt:
        outcome = run("sinusoid", config, folder)
    else:
        raise AssertionError("the run was not interrupted")
    return {
        "rows": row_numbers(outcome.rows),
        "weights": {
            head: summary(torch.cat([p.flatten() for p in nc.parameters()]))
            for head, nc in outcome.networks.items()
        },
    }
