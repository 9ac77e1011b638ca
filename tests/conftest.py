"""Every test runs in double precision, in a random state of its own."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from multiprocessing import get_context
from multiprocessing.context import ForkServerContext
from typing import TYPE_CHECKING

import pytest
import torch
from hypothesis import settings
from torch import nn

from glyphs import thumbnails, write_zip
from neural_complexity.learners.fit import Recipe
from neural_complexity.learners.networks import mlp
from neural_complexity.losses import cross_entropy
from neural_complexity.meta import executor, parallel
from neural_complexity.seeding import stream
from neural_complexity.snapshot import Snapshot
from neural_complexity.task import Task
from neural_complexity.tasks.families import Sinusoids
from neural_complexity.tasks.images import FewShot

if TYPE_CHECKING:
    from smoke_runs import FinishedRun, SmokeRuns

# Timings are noisy here; a slow example is no failure.
settings.register_profile("laws", deadline=None, max_examples=25, derandomize=True)
settings.load_profile("laws")


@contextmanager
def precision(dtype: torch.dtype) -> Iterator[None]:
    """Sets the default type for a while, as fixtures of a module must: other tests see theirs."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


@pytest.fixture(autouse=True)
def double_precision() -> Iterator[None]:
    with precision(torch.float64), torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        yield


@pytest.fixture
def single_precision(double_precision: None) -> None:
    torch.set_default_dtype(torch.float32)  # as users run it


@pytest.fixture
def task() -> Task:
    return Sinusoids(train_points=5, test_points=7).sample(6, stream(0, "test tasks"))


@pytest.fixture
def recipe() -> Recipe:
    return Recipe(make=partial(mlp, 1, (8, 8), 1), steps=3, lr=0.05)


@pytest.fixture(scope="session")
def few_shot() -> FewShot:
    return FewShot(thumbnails(), ways=3, shots=2, queries=2)


def flat() -> nn.Module:
    """A learner of thumbnails and three classes."""
    return nn.Sequential(nn.Flatten(), mlp(49, (8,), 3))


def convolutional() -> nn.Module:
    """The same with filters."""
    pool = nn.MaxPool2d(2)
    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), pool, nn.Flatten(), nn.Linear(16, 3))


@pytest.fixture
def image_recipe() -> Recipe:
    return Recipe(make=flat, loss=cross_entropy, steps=3, lr=0.5)


def random_snapshot(
    B: int = 3, M: int = 4, N: int = 5, D: int = 2, C: int = 1, seed: int = 0
) -> Snapshot:
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator)

    return Snapshot(draw(B, M, D), draw(B, M, C), draw(B, M, C), draw(B, N, D), draw(B, N, C))


def labelled_snapshot(
    B: int = 3,
    M: int = 4,
    N: int = 5,
    C: int = 3,
    inputs: tuple[int, ...] = (2,),
    seed: int = 0,
) -> Snapshot:
    """Learners on vectors, or on images if `inputs` is (channels, height, width), with labels."""
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator)

    Y_tr = torch.randint(C, (B, M), generator=generator)
    return Snapshot(draw(B, M, *inputs), Y_tr, draw(B, M, C), draw(B, N, *inputs), draw(B, N, C))


@pytest.fixture(scope="session")
def glyph_folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Returns a data folder with made-up characters in the place of Omniglot."""
    folder = tmp_path_factory.mktemp("glyphs")
    for part, seed in (("background", 0), ("evaluation", 1)):
        write_zip(folder / f"images_{part}.zip", classes=12, drawings=8, seed=seed)
    return str(folder)


@pytest.fixture(scope="session")
def forkserver() -> ForkServerContext:
    """Returns what forks processes off one that has imported all they need, which takes seconds.

    Users' processes are started anew: some tests of each kind of process do without this.
    """
    context = get_context("forkserver")
    context.set_forkserver_preload(["neural_complexity.experiments.single", "torch._dynamo"])
    return context


@pytest.fixture
def forked_workers(forkserver: ForkServerContext, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (executor, parallel):
        monkeypatch.setattr(module, "get_context", lambda _: forkserver)


def holds_for_seeds(check: Callable[[int], bool]) -> None:
    """Asserts that a training passes its check for at least 19 of 20 seeds.

    Everyday runs try one seed; `make seeds` tries twenty (SEEDS=20).
    """
    seeds = int(os.environ.get("SEEDS", "1"))
    failed = [seed for seed in range(seeds) if not check(seed)]
    assert len(failed) <= seeds // 20, f"failed for seeds {failed} of {seeds}"


@pytest.fixture(scope="session")
def smoke_runs(tmp_path_factory: pytest.TempPathFactory, glyph_folder: str) -> "SmokeRuns":
    """Runs an experiment by name at preset smoke, once for all who ask."""
    from smoke_runs import SmokeRuns, shared_folder  # tests of lower layers need no experiments

    return SmokeRuns(shared_folder(tmp_path_factory), glyph_folder)


@pytest.fixture(scope="session")
def single_run(smoke_runs: "SmokeRuns") -> "FinishedRun":
    """Returns the run of `single`, whose NCs other experiments use."""
    return smoke_runs("single")
