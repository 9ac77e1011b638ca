"""N-way K-shot classification: few images of few classes."""

from dataclasses import KW_ONLY, dataclass

import torch

from neural_complexity.points import indexed
from neural_complexity.task import Task
from neural_complexity.tasks.images import Images
from neural_complexity.tasks.sampling import check_at_most, check_sizes, choose

__all__ = ["FewShot"]


@dataclass(frozen=True, eq=False)
class FewShot:
    """Tasks that tell `ways` random classes apart after `shots` images of each.

    A task's classes are different ones in random order, so a label means something else in each
    task; no image stands in a task twice.
    """

    images: Images  # each class has at least shots + queries
    _: KW_ONLY
    ways: int = 10  # classes of a task, C
    shots: int = 1  # training images of each class: M = ways * shots
    queries: int = 5  # test images of each class: N = ways * queries

    def __post_init__(self) -> None:
        check_sizes(ways=self.ways, shots=self.shots, queries=self.queries)
        check_at_most("ways", self.ways, self.images.classes)
        fewest = int(self.images.counts.min())
        check_at_most("shots + queries", self.shots + self.queries, fewest)

    def sample(self, batch: int, generator: torch.Generator) -> Task:
        """Draws `batch` tasks of `Points`, (B, M) and (B, N), with labels 0 ... ways - 1."""
        check_sizes(batch=batch)
        device = generator.device
        counts = self.images.counts.to(device)
        every = torch.full((batch,), len(counts), device=device)
        classes = choose(every, self.ways, generator)  # (B, ways)
        picked = choose(counts[classes], self.shots + self.queries, generator)
        first = counts.cumsum(dim=0) - counts
        place = first[classes][..., None] + picked  # (B, ways, shots + queries)
        indices = self.images.by_class.to(device)[place].mT.flatten(1)  # (B, M + N)
        labels = torch.arange(self.ways, device=device).repeat(batch, self.shots + self.queries)
        X, M = indexed(indices, self.images), self.ways * self.shots
        return Task(X[:, :M], labels[:, :M], X[:, M:], labels[:, M:])
