"""Every number that the paper states, beside ours."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

from neural_complexity.assessment.report import Table
from neural_complexity.experiments.base.rows import Row, find, read_rows, show
from neural_complexity.experiments.base.run_folder import HEADS, RunFolder

__all__ = ["scorecard"]

FEWER = "train_images"  # the key of rows of learners that had fewer images than the paper's
DIGITS = {"R2": 4}  # where two say too little
NO_SETTINGS = ("data", "device", "networks", "seed")


def scorecard(folders: Sequence[RunFolder]) -> list[Table]:
    """Returns what is behind each run, and a table of each: the paper's numbers and both heads'."""
    found = [table for folder in folders if (table := _table(folder))]
    if not found:
        names = ", ".join(folder.path.name for folder in folders) or "nothing"
        raise ValueError(f"DIR must be runs of which the paper has numbers, got {names}")
    header = ("run", "learners judged", "their steps", *(f"NC {head}" for head in HEADS))
    note = (
        "Learners judged: by method, or tasks of one learner each where a run has no repetitions. "
        "NC: its updates and the rows of a batch; the learners that it learned from, and their "
        "steps. A run without an NC of its own takes those of the run that is named, or the "
        "shipped ones."
    )
    behind = Table("What is behind the numbers", header, tuple(map(_behind, folders)), note)
    return [behind, *found]


def _behind(folder: RunFolder) -> tuple[str, ...]:
    config = folder.read_config()["config"]
    steps = config.get("steps", "")
    other, ncs = config.get("networks"), []
    for head in HEADS:
        if config.get("shipped") and head == "posterior":
            ncs.append("shipped")
        elif other:
            ncs.append(f"of {other}")
        elif other == "":
            more = f"; on other tasks: {_training(config, head, steps)}" if head in config else ""
            ncs.append(f"shipped{more}")
        else:
            ncs.append(_training(config, head, steps))
    if "training" in config:  # an ablation trains variants of one head
        ncs[HEADS.index("direct")] = _training(config, "training", steps)
    return folder.path.name, str(config.get("runs", config.get("eval_tasks", ""))), str(steps), *ncs


def _training(config: dict[str, Any], name: str, steps: object) -> str:
    if name not in config:
        return f"for {config['budget']}" if "budget" in config else "see the run's own page"
    nc = config[name]
    updates, learners = nc["iterations"] * nc["updates"], nc["iterations"] * nc["tasks"]
    length = nc.get("learner_steps", steps)
    return f"{updates:,} updates of {nc['batch']}; {learners:,} learners of {length} steps"


def _table(folder: RunFolder) -> Table | None:
    config, rows = folder.read_config()["config"], read_rows(folder.path / "rows.jsonl")
    if not (lines := tuple(dict.fromkeys(_lines(rows)))):
        return None
    presets = folder.experiment.presets.items()
    papers = {name: asdict(make()) for name, make in presets if name.startswith("paper")}
    learner = config.get("learner")  # the paper has different settings for different kinds
    preset = next(name for name, paper in papers.items() if paper.get("learner") == learner)
    changed = [*_differences(config, papers[preset])]
    if "networks" in config:
        changed.append(f"NCs: {config['networks'] or 'the shipped ones, of run sinusoid'}")
    return Table(
        f"{folder.experiment.title} ({folder.path.name})",
        ("number", "the paper", "ours: its head, or no NC", "ours: our head"),
        lines,
        f"Seed {rows[0].seed}, commit {rows[0].commit}. Value ± 95 % interval. †: fewer training "
        f"images than the paper's. Settings that are not those of preset {preset}, which are in "
        f"brackets: {'; '.join(changed) or 'none'}.",
    )


def _lines(rows: list[Row]) -> Iterator[tuple[str, ...]]:
    for row in (row for row in rows if row.paper is not None):
        keys = {name: key for name, key in row.keys.items() if name != "head"}
        heads: list[Row | None] = [row, None]
        if "head" in row.keys:
            heads = [find(rows, row.metric, **keys, head=h) for h in ("direct", "posterior")]
        mark, digits = " †" if FEWER in keys else "", DIGITS.get(row.metric, 2)
        told = [f"{show(own, digits)}{mark}" if own else "" for own in heads]
        named = (key if isinstance(key, str) else f"{name} {key:g}" for name, key in keys.items())
        yield f"{row.metric}: {', '.join(named)}", f"{row.paper:.{digits}f}", *told


def _differences(ours: dict[str, Any], paper: dict[str, Any]) -> Iterator[str]:
    """Yields which settings differ, the paper's in brackets; folders and seeds are no settings."""
    flat, nested = [], []
    for name, value in paper.items():
        own = ours.get(name, value)
        if isinstance(value, dict):
            found = ", ".join(_differences(own, value))
            nested += [f"{name}: {found}"] if found else []
        elif _plain(own) != _plain(value) and name not in NO_SETTINGS:
            flat.append(f"{name} {_plain(own)} ({_plain(value)})")
    yield from flat + nested


def _plain(value: object) -> object:
    return list(value) if isinstance(value, tuple) else value
