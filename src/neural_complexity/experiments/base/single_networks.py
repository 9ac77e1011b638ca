"""Experiments with the NCs that a run of `single` left."""

from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from neural_complexity.assessment.tables import Table
from neural_complexity.experiments.base.config import config_from_dict
from neural_complexity.experiments.base.image_learners import (
    BELIEFS,
    CNN,
    DISTILLED,
    EmbeddedNC,
    ImageMethod,
)
from neural_complexity.experiments.base.one_dataset import ImageConfig, ImageData, SplitTraining
from neural_complexity.experiments.base.rows import Row, read_rows
from neural_complexity.experiments.base.run_folder import RunFolder
from neural_complexity.experiments.base.saved_networks import HEADS, load_network
from neural_complexity.experiments.base.table_views import find, select, show
from neural_complexity.experiments.base.training import Head

__all__ = [
    "SingleNetworksConfig",
    "load_ncs",
    "reference_rows",
    "reference_table",
    "shared_with",
]

# What must be as it was when the networks were trained: which images those have seen.
SAME = ("dataset", "train_images", "test_images", "held", "seed")
SOURCE = {"source": "single"}  # the key of rows that come from that run


@dataclass(frozen=True, kw_only=True)
class SingleNetworksConfig(ImageConfig):
    """An experiment with the NCs of a run of `single`, whose training was that run's."""

    networks: str = ""
    """The folder of a finished run of `single` on the same images, for its NCs."""


def shared_with(config: ImageConfig, **changes: Any) -> dict[str, Any]:
    """Returns the fields that an experiment on a run's NCs has in common with it."""
    return {field.name: getattr(config, field.name) for field in fields(ImageConfig)} | changes


def load_ncs(config: SingleNetworksConfig, data: ImageData) -> dict[Head, EmbeddedNC]:
    """Loads the NCs that a config names and embeds all images with them.

    Raises:
        ValueError: If there are none, or they were trained on other images.
    """
    if not config.networks:
        raise ValueError(
            f"networks must be the folder of a finished run of single on {config.dataset}, got none"
        )
    folder = Path(config.networks)
    if not folder.is_dir():
        raise ValueError(
            f"networks must be the folder of a finished run of single, got no {folder}"
        )
    started = RunFolder(folder).read_config()
    if started["experiment"] != "single":
        raise ValueError(f"networks must be a run of single, got one of {started['experiment']}")
    theirs = started["config"]
    for name in SAME:
        if theirs.get(name) != getattr(config, name):
            raise ValueError(
                f"networks must be a run with the same {', '.join(SAME)}, got one with "
                f"{name} {theirs.get(name)} in the place of {getattr(config, name)}"
            )
    # How NCs were trained decides how many points they should see at a time.
    posterior, direct = (config_from_dict(SplitTraining, theirs[head]) for head in HEADS)
    trained = replace(data, config=replace(config, posterior=posterior, direct=direct))
    return {
        head: EmbeddedNC.of(load_network(config.networks, head, "single", config.device), trained)
        for head in HEADS
    }


def reference_rows(config: SingleNetworksConfig, experiment: str) -> list[Row]:
    """Returns what shows where NC's help comes from, as the run of `single` measured it."""
    return [
        replace(row, experiment=experiment, keys=ImageMethod.of(row).keys | SOURCE)
        for row in read_rows(Path(config.networks) / "rows.jsonl")
        if ImageMethod.of(row) in (BELIEFS, CNN, DISTILLED)
        and row.metric in ("accuracy", "test loss")
    ]


def reference_table(rows: list[Row]) -> Table:
    """Returns the table of `reference_rows`."""
    lines = [
        (ImageMethod.of(row).label, show(row), show(find(rows, "test loss", **row.keys), 3))
        for row in select(rows, "accuracy", **SOURCE)
    ]
    return Table(
        "Beside NC, from the run of single that NC comes from",
        ("method", "accuracy", "test loss"),
        tuple(lines),
        "What classifies without a learner is one network and has no interval.",
    )
