"""Networks that read tables by one token per cell or per row: which learns more in a given time?

Run as `OMP_NUM_THREADS=1 python benchmarks/table_tokens.py cells --minutes 30 --rows FILE`, and
with `rows` in the place of `cells`: a network learns from synthetic tables for so long on one core,
and its log loss on other synthetic tables and on the real tables for development is appended to the
file. With `others` what needs no training is scored on the same tables: class frequencies, a forest
and the NC that ships. A training that was interrupted goes on in `--folder`.
"""

import argparse
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from sklearn.dummy import DummyClassifier
from sklearn.ensemble import RandomForestClassifier
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from neural_complexity import NeuralComplexity, stream
from neural_complexity.cores import hold_memory
from neural_complexity.experiments.base.rows import commit
from neural_complexity.experiments.base.table_evidence import METRICS, metrics_of
from neural_complexity.experiments.base.table_models import as_numbers, draw_split
from neural_complexity.integrations.estimator_nc import EstimatorNC
from neural_complexity.meta.optimize import Optimization, optimize
from neural_complexity.meta.pretrain import Pretraining, held_out_tables
from neural_complexity.meta.scores import estimate_mean
from neural_complexity.model.table_network import _Layer, describe_cells
from neural_complexity.seeding import seeded
from neural_complexity.task import Task
from neural_complexity.tasks.real_tables import load_table, table_names
from neural_complexity.tasks.synthetic_tables import Tables
from neural_complexity.workspace import Workspace, fingerprint

FAMILY = Tables(train_points=(10, 256), test_points=64, features=(2, 20))
LARGEST = 60  # features of a table that one token per row has room for
SEEN = 3  # numbers of a cell
EXTRA = 16  # rows that are learned
SETTINGS = Pretraining(updates=1, tables=16, together=4, lr=0.002)
TRIED = 24  # updates by which the time of one is measured
# About as many parameters each.
SIZES: dict[str, dict[str, int]] = {
    "cells": {"width": 96, "layers": 4},
    "rows": {"width": 112, "layers": 4},
}
LABELS = (40, 200)  # of real tables


class TokenNetwork(nn.Module):
    """Class probabilities of test rows by attention; test rows see training rows alone.

    With one token per cell the label is one more cell, and attention goes over the cells of a row
    and those of a column in turn; with one token per row it goes over rows.

    Args:
        cells: Whether a cell has a token of its own.
        width: Of a token.
        layers: Of attention.
    """

    def __init__(self, *, cells: bool, width: int, layers: int) -> None:
        super().__init__()
        C = FAMILY.classes
        self.cells = cells
        self.inwards = nn.Linear(SEEN if cells else SEEN * LARGEST, width)
        self.labels = nn.Embedding(C + 1, width)  # the last one stands for test rows
        self.extra_rows = nn.Parameter(torch.randn(EXTRA, width) * 0.02)
        self.table_layers = nn.ModuleList(_Layer(width, 4) for _ in range(layers))
        if not cells:
            for layer in self.table_layers:
                layer.across = nn.Identity()  # there is one token to see
        self.norm, self.answers = nn.LayerNorm(width), nn.Linear(width, C)

    def forward(self, task: Task) -> Tensor:
        """Returns log-probabilities, up to a constant, (B, N, C)."""
        X, Y_tr, C = describe_cells(task.X_tr, task.X_te), task.Y_tr, FAMILY.classes
        (B, rows, D), M = X.shape[:3], Y_tr.shape[1]
        known = torch.full((B, rows), C).to(Y_tr)
        known[:, :M] = Y_tr
        if self.cells:
            tokens = [self.inwards(X), self.labels(known).unsqueeze(2)]
            e = torch.cat(tokens, dim=2)  # (B, rows, D + 1, E)
        else:
            X = torch.cat([X, X.new_zeros(B, rows, LARGEST - D, SEEN)], dim=2) * (LARGEST / D)
            e = (self.inwards(X.flatten(2)) + self.labels(known)).unsqueeze(2)  # (B, rows, 1, E)
        learned = self.extra_rows[:, None].expand(B, -1, e.shape[2], -1)
        e, there = torch.cat([learned, e], dim=1), torch.ones(B, e.shape[2], dtype=torch.bool)
        for layer in self.table_layers:
            e = layer(e, EXTRA + M, there)
        told = self.answers(self.norm(e[:, EXTRA + M :, -1]))
        occurs = torch.zeros(B, C).scatter_(1, Y_tr, 1.0).bool()
        answers: Tensor = told.masked_fill(~occurs[:, None], -1e4)
        return answers


def loss_of(network: TokenNetwork, task: Task) -> Tensor:
    return cross_entropy(network(task).flatten(0, 1), task.Y_te.flatten())


def train(kind: str, minutes: float, seed: int, folder: Path | None) -> tuple[TokenNetwork, Any]:
    """Trains a network for about so long; returns it and what is known of its training."""
    with seeded(seed, "weights"):
        network = TokenNetwork(cells=kind == "cells", **SIZES[kind])
    work = Workspace(folder, fingerprint(kind, minutes, seed, SIZES[kind]))
    parts, drawing = SETTINGS.tables // SETTINGS.together, list[float]()

    def losses(progress: float, update: int) -> Iterator[Tensor]:
        family = SETTINGS.family(FAMILY, progress)
        for part in range(parts):
            start = time.perf_counter()
            task = family.sample(SETTINGS.together, stream(seed, "tables", update, part))
            drawing.append(time.perf_counter() - start)
            yield loss_of(network, task) / parts

    plan = work.read("plan")
    if plan is None:
        start = time.perf_counter()
        for i in range(TRIED):
            for loss in losses((i + 0.5) / TRIED, i):
                loss.backward()
        network.zero_grad()
        updates = max(1, round(60 * minutes * TRIED / (time.perf_counter() - start)))
        work.write("plan", content=updates)
    else:
        updates = plan[1]  # type: ignore[assignment]
    how = Optimization(
        updates=updates,
        lr=SETTINGS.lr,
        warmup=SETTINGS.warmup,
        clip=SETTINGS.clip,
        checkpoints=10,
    )
    held_out = held_out_tables(FAMILY, SETTINGS, seed)

    @torch.no_grad()
    def validate() -> float:
        return torch.stack([loss_of(network, task) for task in held_out]).mean().item()

    def tell(_: str, done: int, total: int, seconds: float, metrics: dict[str, float]) -> None:
        if done % max(1, total // 20) == 0:
            print(f"{kind} {done}/{total} {seconds:.0f} s {metrics}", flush=True)

    matrices = [p for n, p in network.named_parameters() if p.ndim == 2 and "_layers." in n]
    history = optimize(
        network,
        lambda update: losses(update / updates, update),
        how,
        kind,
        work,
        tell,
        matrices=matrices,
        validate=validate,
    )
    facts = {
        "parameters": sum(p.numel() for p in network.parameters()),
        "tables": updates * SETTINGS.tables,
        "seconds": round(history[-1].seconds),
        "seconds of drawing tables": round(sum(drawing) * updates * parts / len(drawing)),
    }
    return network, facts


Believe = Callable[[Task], Tensor]  # probabilities of test rows, (B, N, C)


def real_tasks(labels: int) -> list[Task]:
    """Returns one split of each table for development that is large enough."""
    found = []
    for name in table_names(labels=True, developed=True):
        split = draw_split(load_table(name), labels, 200)
        if split is not None and split.X_tr.shape[1] <= LARGEST:
            X_tr, X_te = (
                torch.from_numpy(as_numbers(X)).to(torch.get_default_dtype())[None]
                for X in (split.X_tr, split.X_te)
            )
            y_tr, y_te = (torch.from_numpy(y)[None].long() for y in (split.y_tr, split.y_te))
            found.append(Task(X_tr, y_tr, X_te, y_te))
    return found


@torch.no_grad()
def score(believe: Believe) -> Iterator[dict[str, Any]]:
    """Returns rows of what beliefs cost, on average over tables."""
    synthetic = [FAMILY.sample(4, stream(7, "tables of the report", i)) for i in range(32)]
    sets = {"synthetic tables": synthetic}
    sets |= {f"real tables, {labels} labels": real_tasks(labels) for labels in LABELS}
    for name, tasks in sets.items():
        found = []
        for task in tasks:
            P = believe(task).double().numpy()
            pairs = zip(P, task.Y_te.numpy(), strict=True)
            found += [metrics_of(p, y, labels=True, unit=1.0) for p, y in pairs]
        for metric, losses in zip(METRICS[True], torch.stack(found).T, strict=True):
            e = estimate_mean(losses)
            told = {"value": e.value, "ci95": e.ci95, "n": e.n}
            yield {"on": name, "metric": metric, **told}


def others() -> dict[str, Believe]:
    forest = RandomForestClassifier(min_samples_leaf=2, random_state=0)
    ncs = {
        "class frequencies": EstimatorNC(DummyClassifier()),
        "a forest": EstimatorNC(forest),
        "NC for tables": NeuralComplexity.pretrained("tables"),
    }

    def of(nc: Any) -> Believe:
        def believe(task: Task) -> Tensor:
            ones = (task[torch.tensor([b])] for b in range(len(task)))
            told = [nc.belief(t.X_tr, t.Y_tr, t.X_te, classes=FAMILY.classes) for t in ones]
            return torch.cat([t.prediction.softmax(dim=-1) for t in told])

        return believe

    return {name: of(nc) for name, nc in ncs.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kind", choices=[*SIZES, "others"])
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--rows", type=Path, required=True)
    parser.add_argument("--folder", type=Path)
    given = parser.parse_args()
    torch.set_num_threads(1)
    hold_memory()
    if given.kind == "others":
        judged = [(name, believe, dict[str, Any]()) for name, believe in others().items()]
    else:
        network, facts = train(given.kind, given.minutes, given.seed, given.folder)
        network.eval()
        facts |= {"minutes": given.minutes, "seed": given.seed}
        judged = [(given.kind, lambda task: network(task).softmax(dim=-1), facts)]
    with given.rows.open("a") as file:
        for name, believe, facts in judged:
            for row in score(believe):
                told = json.dumps({"network": name, **facts, **row, "commit": commit()})
                print(told, flush=True)
                file.write(told + "\n")


if __name__ == "__main__":
    main()
