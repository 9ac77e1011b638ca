"""What the experiments share that ask the NCs which a run of `single` left."""

from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from torch import Tensor

from neural_complexity.experiments.base.networks import HEADS, load_network
from neural_complexity.experiments.base.one_dataset import (
    LargeConfig,
    SplitTraining,
    World,
    make_recipe,
)
from neural_complexity.experiments.base.rows import Row, read_rows
from neural_complexity.experiments.base.run_folder import RunFolder, config_from_dict
from neural_complexity.experiments.base.trajectories import Judge, arrange, learn, run_seed
from neural_complexity.experiments.single import BELIEFS, CNN, DISTILLED
from neural_complexity.learners.recipe import Recipe
from neural_complexity.meta.collect_splits import log_steps

__all__ = ["BESIDE", "AsksSingle", "beside_rows", "learn_whole", "load_judges", "shared_with"]

BESIDE = "the run of single that NC comes from"
# What must be as it was when the networks were trained: which images those have seen.
SAME = ("dataset", "train_images", "test_images", "held", "seed")


@dataclass(frozen=True, kw_only=True)
class AsksSingle(LargeConfig):
    """An experiment that asks the NCs of a run of `single`, whose training was that run's."""

    networks: str = ""
    """The folder of a finished run of `single` on the same images, for its NCs."""


def shared_with(config: LargeConfig, **changes: Any) -> dict[str, Any]:
    """Gives what an experiment on a run's NCs has in common with it, but for some changes."""
    return {field.name: getattr(config, field.name) for field in fields(LargeConfig)} | changes


def load_judges(config: AsksSingle, world: World) -> dict[str, Judge]:
    """Loads the NCs that a config names and lets them look at all images.

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
    # How NCs were trained says how many points they should be shown.
    posterior, direct = (config_from_dict(SplitTraining, theirs[head]) for head in HEADS)
    trained = replace(config, posterior=posterior, direct=direct)
    return {
        head: Judge.of(
            load_network(config.networks, head, "single", config.device), head, trained, world
        )
        for head in HEADS
    }


def beside_rows(config: AsksSingle, name: str) -> list[Row]:
    """Gives what must stand beside NC in every table, as the run of `single` measured it.

    Args:
        config: The settings of the experiment.
        name: The name of the experiment.
    """
    return [
        replace(row, experiment=name, setting=BESIDE)
        for row in read_rows(Path(config.networks) / "rows.jsonl")
        if row.method in (BELIEFS, CNN, DISTILLED) and row.metric in ("accuracy", "test loss")
    ]


def learn_whole(
    config: LargeConfig,
    world: World,
    judges: dict[str, Judge],
    method: str,
    first: int,
    runs: int,
    *,
    recipe: Recipe | None = None,
) -> dict[str, Tensor]:
    """Trains learners of the whole dataset, with NC or without, and looks at them on test images.

    Args:
        config: The settings.
        world: The dataset.
        judges: NCs by head.
        method: See `arrange`.
        first: The first of the learners.
        runs: How many.
        recipe: How they learn; the config's if `None`.
    """
    recipe = make_recipe(config, world) if recipe is None else recipe
    task, judged, regularizer = arrange(config, world, judges, method, runs)
    return learn(
        recipe,
        config,
        task,
        judged,
        seed=run_seed(config, first),
        regularizer=regularizer,
        visits=log_steps(recipe.steps, config.looks),
    )
