"""Every test runs in double precision, in a random state of its own."""

from collections.abc import Iterator
from functools import partial

import pytest
import torch
from hypothesis import settings

from glyphs import write_zip
from neural_complexity.learners.networks import mlp
from neural_complexity.learners.recipe import Recipe
from neural_complexity.seeding import stream
from neural_complexity.snapshot import Snapshot
from neural_complexity.task import Task
from neural_complexity.tasks.sinusoid import Sinusoids

# Timings are noisy here; a slow example is no failure.
settings.register_profile("laws", deadline=None, max_examples=25, derandomize=True)
settings.load_profile("laws")


@pytest.fixture(autouse=True)
def double_precision() -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        yield
    torch.set_default_dtype(before)


@pytest.fixture
def task() -> Task:
    return Sinusoids(train_points=5, test_points=7).sample(6, stream(0, "test tasks"))


@pytest.fixture
def recipe() -> Recipe:
    return Recipe(make=partial(mlp, 1, (8, 8), 1), steps=3, lr=0.05)


def random_snapshot(
    B: int = 3, M: int = 4, N: int = 5, D: int = 2, C: int = 1, seed: int = 0
) -> Snapshot:
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator)

    return Snapshot(draw(B, M, D), draw(B, M, C), draw(B, M, C), draw(B, N, D), draw(B, N, C))


@pytest.fixture(scope="session")
def glyph_folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Gives a data folder with made-up characters in the place of Omniglot."""
    folder = tmp_path_factory.mktemp("glyphs")
    for part, seed in (("background", 0), ("evaluation", 1)):
        write_zip(folder / f"images_{part}.zip", classes=12, drawings=8, seed=seed)
    return str(folder)
