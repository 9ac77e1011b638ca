from dataclasses import replace
from pathlib import Path

import pytest
import torch

from neural_complexity.learners.recipe import Recipe
from neural_complexity.meta import training_loop as session
from neural_complexity.meta.checkpoint import read_checkpoint, write_checkpoint
from neural_complexity.meta.trainer import MetaLearner
from neural_complexity.meta.training_loop import Moment, Resume, Stop, meta_train
from neural_complexity.model.network import NeuralComplexity
from neural_complexity.seeding import stream
from neural_complexity.tasks.few_shot import FewShot
from neural_complexity.tasks.sinusoids import Sinusoids

family = Sinusoids(train_points=5, test_points=7)
SAVE_EVERY = 3


class KilledError(Exception):
    pass


def train(
    recipe: Recipe,
    folder: Path | None,
    stop_after: int | None = None,
    keep: int = SAVE_EVERY,
    stop: Stop | None = None,
    few_shot: FewShot | None = None,
) -> tuple[dict[str, torch.Tensor], list[Moment]]:
    """Trains to the end, or dies right after an iteration, between any two checkpoints."""
    torch.manual_seed(0)
    if few_shot is None:
        nc = NeuralComplexity.for_tasks(family.sample(64, stream(0, "units")), width=16)
    else:
        units = few_shot.sample(16, stream(0, "units"))
        nc = NeuralComplexity.for_tasks(
            units, loss="cross_entropy", width=8, channels=4, image_layers=2
        )

    def build(bank: Path | None, resume: Resume | None) -> MetaLearner:
        return MetaLearner(
            nc,
            few_shot or family,
            recipe,
            seed=0,
            iterations=10,
            updates=3,
            batch=16,
            tasks=8,
            lr=0.01,
            capacity=100,  # wraps several times
            made_up=0.0 if few_shot is None else 0.5,
            run=1 if few_shot is None else 4,
            bank_folder=bank,
            keep=keep,
            resume=resume,
        )

    def watch(moment: Moment) -> None:
        if moment.iteration == stop_after:
            raise KilledError

    def validate(nc: NeuralComplexity) -> float:
        return next(nc.parameters()).sum().item()

    history = meta_train(
        build,
        validate=validate,
        validate_every=2,
        save_every=SAVE_EVERY,
        folder=folder,
        watch=watch,
        stop=stop,
    )
    return nc.state_dict(), [replace(moment, seconds=0.0) for moment in history]


@pytest.mark.parametrize("stops", [[1], [2], [3], [4, 5], [3, 6, 8], [8, 8, 10]])
def test_resumed_equals_uninterrupted(recipe: Recipe, tmp_path: Path, stops: list[int]) -> None:
    weights, history = train(recipe, None)
    for stop in stops:
        with pytest.raises(KilledError):
            train(recipe, tmp_path, stop_after=stop)
    resumed_weights, resumed_history = train(recipe, tmp_path)
    assert all(torch.equal(resumed_weights[name], value) for name, value in weights.items())
    assert resumed_history == history


@pytest.mark.parametrize("stops", [[2], [4, 5, 10]])
def test_on_images_resumed_equals_uninterrupted(
    few_shot: FewShot, image_recipe: Recipe, tmp_path: Path, stops: list[int]
) -> None:
    weights, history = train(image_recipe, None, few_shot=few_shot)
    for stop in stops:
        with pytest.raises(KilledError):
            train(image_recipe, tmp_path, stop_after=stop, few_shot=few_shot)
    resumed_weights, resumed_history = train(image_recipe, tmp_path, few_shot=few_shot)
    assert all(torch.equal(resumed_weights[name], value) for name, value in weights.items())
    assert resumed_history == history


@pytest.mark.parametrize("fatal", [1, 2, 3])
def test_killed_between_the_bank_and_the_checkpoint(
    recipe: Recipe, tmp_path: Path, fatal: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bank is then as far ahead of the checkpoint as it may ever be."""
    weights, history = train(recipe, None)
    calls = []

    def die(path: Path, *content: object) -> None:
        calls.append(path)
        if len(calls) == fatal:
            raise KilledError
        write_checkpoint(path, *content)  # type: ignore[arg-type]

    monkeypatch.setattr(session, "write_checkpoint", die)
    with pytest.raises(KilledError):
        train(recipe, tmp_path)
    resumed_weights, resumed_history = train(recipe, tmp_path)
    assert all(torch.equal(resumed_weights[name], value) for name, value in weights.items())
    assert resumed_history == history


class Third:
    """Ends at the third score it hears of, so it must hear of each one once."""

    def __init__(self) -> None:
        self.heard: list[int] = []

    def __call__(self, moment: Moment) -> bool:
        self.heard.append(moment.iteration)
        return len(self.heard) == 3


@pytest.mark.parametrize("deaths", [[], [1], [2], [3], [4, 5], [3, 6]])
def test_stopped_early_is_the_start_of_the_whole_run_however_interrupted(
    recipe: Recipe, tmp_path: Path, deaths: list[int]
) -> None:
    weights, history = train(recipe, None, stop=Third())
    _, whole = train(recipe, None)
    assert [moment.iteration for moment in history] == [2, 4, 6]
    assert history == whole[:3]
    for death in deaths:
        with pytest.raises(KilledError):
            train(recipe, tmp_path, stop_after=death, stop=Third())
    for _ in range(2):  # the second time, all is done
        third = Third()
        resumed_weights, resumed_history = train(recipe, tmp_path, stop=third)
        assert all(torch.equal(resumed_weights[name], value) for name, value in weights.items())
        assert resumed_history == history
        assert third.heard == [2, 4, 6]


def test_a_bank_that_cannot_go_back_far_enough_is_refused(recipe: Recipe, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="the bank must be able to go back 96 rows to resume, got"):
        train(recipe, tmp_path, keep=SAVE_EVERY - 1)


def test_a_checkpoint_of_other_settings_is_refused(tmp_path: Path) -> None:
    write_checkpoint(tmp_path / "checkpoint.safetensors", {}, {"identity": "mine", "history": []})
    with pytest.raises(ValueError, match="must be of the same settings, got one of others"):
        session.meta_train(
            lambda *_: pytest.fail("built"),
            validate=lambda _: 0.0,
            validate_every=1,
            save_every=1,
            folder=tmp_path,
            identity="yours",
        )


def test_a_finished_session_is_not_repeated(recipe: Recipe, tmp_path: Path) -> None:
    weights, history = train(recipe, tmp_path)
    again, same = train(recipe, tmp_path, stop_after=1)  # would die if it iterated
    assert all(torch.equal(again[name], value) for name, value in weights.items())
    assert same == history


def test_a_damaged_checkpoint_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint.safetensors"
    write_checkpoint(path, {"a": torch.ones(3)}, {"iteration": 1})
    tensors, counters = read_checkpoint(path)
    assert torch.equal(tensors["a"], torch.ones(3))
    assert counters == {"iteration": 1}
    path.write_bytes(path.read_bytes()[:-2])
    with pytest.raises(ValueError, match="must be a safetensors file, got a damaged one"):
        read_checkpoint(path)
