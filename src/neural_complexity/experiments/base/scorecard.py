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
    return [table for folder in folders if (table := _table(folder)).rows]


def _table(folder: RunFolder) -> Table:
    config, paper = folder.read_config(), folder.experiment.presets["paper"]()
    rows = read_rows(folder.path / "rows.jsonl")
    changed = "; ".join(_differences(config["config"], asdict(paper)))
    return Table(
        f"{folder.experiment.title} ({folder.path.name})",
        ("number", "the paper", "ours: its head, or no NC", "ours: our head"),
        tuple(dict.fromkeys(_lines(rows))),
        f"Seed {rows[0].seed}, commit {rows[0].commit}. Value ± 95 % interval. †: fewer training "
        "images than the paper's. Settings that are not those of preset paper, which are in "
        f"brackets: {changed or 'none'}.",
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
