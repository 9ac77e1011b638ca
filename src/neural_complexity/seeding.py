"""Named random streams, all derived from one seed."""

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager

import torch

__all__ = ["seeded", "stream"]


def stream(seed: int, *names: str | int) -> torch.Generator:
    """Derives a random generator, on the CPU, from a seed and the name of what it is for.

    It depends on nothing else, so a new draw somewhere changes nothing elsewhere, and a resumed run
    needs no stored generator state.

    Args:
        seed: The one seed of a run.
        names: What the stream is for, for example `"collect", iteration`.

    Example:
        >>> a, b = stream(0, "tasks", 7), stream(0, "tasks", 7)
        >>> bool((torch.rand(3, generator=a) == torch.rand(3, generator=b)).all())
        True
    """
    digest = hashlib.sha256(json.dumps([seed, *names]).encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:8], "little") >> 1)


@contextmanager
def seeded(seed: int, *names: str | int) -> Iterator[None]:
    """Lets what draws from PyTorch's own CPU generator, as modules do, draw from a named stream."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(stream(seed, *names).initial_seed())
        yield
