"""Every number that the paper states, beside ours."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

from neural_complexity.assessment.report import Table
from neural_complexity.experiments.base.rows import Row, find, read_rows, show
from neural_complexity.experiments.base.run_folder import RunFolder

__all__ = ["scorecard"]

FEWER = "train_images"  # the key of rows of learners that had fewer images than the paper's
DIGITS = {"R2": 4}  # where two say too little
NO_SETTINGS = ("data", "device", "networks", "seed")


def scorecard(folders: Sequence[RunFolder]) -> list[Table]:
    """Returns a table for each run: what the paper states, and both heads' rows."""
    found = [table for folder in folders if (table := _table(folder)).rows]
    if not found:
        names = ", ".join(folder.path.name for folder in folders) or "nothing"
        raise ValueError(f"DIR must be runs of which the paper has numbers, got {names}")
    return found


def _table(folder: RunFolder) -> Table:
    config, rows = folder.read_config()["config"], read_rows(folder.path / "rows.jsonl")
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
        tuple(dict.fromkeys(_lines(rows))),
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
