"""Writes the golden values anew: `python tests/golden/record.py [smoke-folder [experiment ...]]`.

To be run only where a change of the numbers is meant, and said so in the changelog. A folder that
holds finished runs at preset smoke, one folder per experiment, saves running them again; runs made
with `ATEN_CPU_CAPABILITY=default` in the folder beside it, named `slow`, tell which rows depend on
the processor. With names of experiments, only their presets and rows are written anew.
"""

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


def write(name: str, content: Any) -> None:
    """Writes one file of golden values, a line for each entry."""
    lines = ",\n".join(f"{json.dumps(key)}: {json.dumps(value)}" for key, value in content.items())
    (FOLDER / f"{name}.json").write_text(f"{{\n{lines}\n}}\n")


def main() -> None:
    """Records everything but smoke rows, and these if their folder is given."""
    torch.set_num_threads(1)
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
    rows, other = (
        [json.loads(line) for line in (f / name / "rows.jsonl").read_text().splitlines()]
        for f in (folder, folder.parent / "slow")
    )
    return [
        [*(row[k] for k in ("metric", "value", "ci95", "n", "paper")), off(row, its)]
        for row, its in zip(rows, other, strict=True)
    ]


def off(row: dict[str, Any], other: dict[str, Any]) -> float:
    """Returns the relative difference of two rows' values, in one digit."""
    difference = abs(row["value"] - other["value"]) / max(abs(row["value"]), 1e-6)
    return float(f"{difference:.0e}")


if __name__ == "__main__":
    main()
