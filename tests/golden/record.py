"""Writes the golden values anew: `python tests/golden/record.py [smoke-folder [experiment ...]]`.

To be run only where a change of the numbers is meant, and said so in the changelog. A folder that
holds finished runs at preset smoke, one folder per experiment, saves running them again; runs made
with `ATEN_CPU_CAPABILITY=default` in the folder beside it, named `slow`, tell which rows depend on
the processor. With names of experiments, only their presets and rows are written anew.

`python tests/golden/record.py --moved folder ...` leaves all values as they are: runs of further
processors, or with other arithmetic (`MKL_CBWR`, `ONEDNN_MAX_CPU_ISA`), tell how far rows move.
"""

import itertools
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parents[1]))  # as pytest does

from glyphs import thumbnails
from golden import behaviour
from golden.behaviour import EXPERIMENTS, FOLDER
from neural_complexity import NeuralComplexity
from neural_complexity.tasks.images import FewShot

KEYS = ("metric", "value", "ci95", "n", "paper")


def write(name: str, content: Any) -> None:
    """Writes one file of golden values, a line for each entry."""
    lines = ",\n".join(f"{json.dumps(key)}: {json.dumps(value)}" for key, value in content.items())
    (FOLDER / f"{name}.json").write_text(f"{{\n{lines}\n}}\n")


def main() -> None:
    """Records everything but smoke rows, and these if their folder is given."""
    torch.set_num_threads(1)
    if sys.argv[1:2] == ["--moved"]:
        rows = json.loads((FOLDER / "smoke.json").read_text())
        for path, name in itertools.product(map(Path, sys.argv[2:]), rows):
            if (path / name).is_dir():
                rows[name] = raise_moved(rows[name], read(path, name))
        write("smoke", rows)
        return
    if some := sys.argv[2:]:
        presets, rows = (
            json.loads((FOLDER / f"{n}.json").read_text()) for n in ("presets", "smoke")
        )
        write("presets", presets | {name: behaviour.presets(name) for name in some})
        write("smoke", rows | {name: smoke_rows(Path(sys.argv[1]), name) for name in some})
        return
    write("presets", {name: behaviour.presets(name) for name in EXPERIMENTS})
    shipped = NeuralComplexity.pretrained_names()
    write("predictions", {name: behaviour.shipped_predictions(name) for name in shipped})
    write("assessments", behaviour.assessments())
    few_shot = FewShot(thumbnails(), ways=3, shots=2, queries=2)
    heads = ("posterior", "direct")
    training = {head: behaviour.tiny_training(head) for head in heads}
    images = {f"{head}, images": behaviour.tiny_image_training(head, few_shot) for head in heads}
    with tempfile.TemporaryDirectory() as folder:
        write("training", {**training, **images, "resumed": behaviour.resumed(Path(folder))})
    if len(sys.argv) > 1:
        write("smoke", {name: smoke_rows(Path(sys.argv[1]), name) for name in EXPERIMENTS})


def smoke_rows(folder: Path, name: str) -> list[Any]:
    """Returns metric, value, ci95, n, paper of each row, and how far the other processor is off."""
    return raise_moved(
        [[*row, 0.0] for row in read(folder, name)], read(folder.parent / "slow", name)
    )


def read(folder: Path, name: str) -> list[Any]:
    """Returns metric, value, ci95, n, paper of each row of a finished run."""
    lines = (folder / name / "rows.jsonl").read_text().splitlines()
    return [[json.loads(line)[key] for key in KEYS] for line in lines]


def raise_moved(rows: list[Any], other: list[Any]) -> list[Any]:
    """Returns golden rows that move at least as far as those of another processor.

    Rows of one metric must come in the order they had, as in `assert_smoke_rows`.
    """
    order, others = (sorted(range(len(rows)), key=lambda i: r[i][0]) for r in (rows, other))
    found = [list(row) for row in rows]
    for i, j in zip(order, others, strict=True):
        found[i][-1] = max(found[i][-1], off(rows[i], other[j]))
    return found


def off(row: list[Any], other: list[Any]) -> float:
    """Returns how far a row is off: the relative difference of values, in one digit.

    Intervals may differ ten times as much.
    """
    pairs = [(row[1], other[1], 1), (row[2] or 0.0, other[2] or 0.0, 10)]
    apart = [abs(a - b) / max(abs(a), 1e-6) / most for a, b, most in pairs]
    return float(f"{max(apart):.0e}")


if __name__ == "__main__":
    main()
