"""The bank's cost per add and per sample, from ten thousand to a hundred million rows."""

import os
import resource
import shutil
import tempfile
from pathlib import Path

import torch

from neural_complexity.meta.bank import MemoryBank
from neural_complexity.seeding import stream
from neural_complexity.snapshot import Snapshot
from timing import Ratio, seconds_each, show

BATCH = 512
SIZES = (10_000, 100_000, 1_000_000, 10_000_000)


def rows(points: int) -> tuple[Snapshot, torch.Tensor]:
    sets = [torch.randn(BATCH, points, 1) for _ in range(6)]
    return Snapshot(*sets[:5]), sets[5]


def resident() -> float:
    """Memory of this process alone, in MB, without pages that belong to files."""
    status = Path("/proc/self/status").read_text()
    return int(status.split("RssAnon:")[1].split()[0]) / 1024


def past_memory() -> list[Ratio]:
    """Measures banks on disk up to a hundred million rows, of one point each: 2.4 GB.

    Their files are sparse, so that no disk must be so empty; what is sampled is mostly holes.
    """
    allocate, (data, generator) = os.posix_fallocate, (rows(1), stream(0, "benchmark"))
    os.posix_fallocate = lambda file, _, length: os.truncate(file, length)
    times: dict[str, list[float]] = {"add": [], "sample": []}
    try:
        for size in (10_000, 100_000_000):
            with tempfile.TemporaryDirectory(dir=Path(__file__).parent) as folder:
                bank = MemoryBank(*data, capacity=size, folder=Path(folder) / "bank")
                bank.count = size
                add = lambda bank=bank: bank.add(*data)  # noqa: E731
                sample = lambda bank=bank: bank.sample(BATCH, generator)  # noqa: E731
                for what, seconds in zip(times, seconds_each(add, sample, rounds=300), strict=True):
                    times[what].append(seconds)
    finally:
        os.posix_fallocate = allocate
    return [
        Ratio(
            f"bank on disk: {what} at 1e8 over 1e4 rows",
            large / small,
            "<= 2",
            large / small <= 2,
            f"{small * 1e3:.2f}, {large * 1e3:.2f} ms for 512 rows of 24 bytes",
        )
        for what, (small, large) in times.items()
    ]


def measure(folder: Path | None) -> tuple[list[float], list[float], float]:
    data, generator = rows(5), stream(0, "benchmark")
    adds, samples, before, grown = [], [], resident(), 0.0
    for size in SIZES:
        path = None if folder is None else folder / str(size)
        bank = MemoryBank(*data, capacity=size, folder=path)
        bank.count = size  # a full ring: sampling touches all of it
        add, sample = seconds_each(
            lambda bank=bank: bank.add(*data),  # type: ignore[misc]
            lambda bank=bank: bank.sample(BATCH, generator),  # type: ignore[misc]
            rounds=300,
        )
        adds.append(add)
        samples.append(sample)
        grown = max(grown, resident() - before)
        del bank
        if path is not None:
            shutil.rmtree(path)
    return adds, samples, grown


def main() -> None:
    ratios = []
    for place in ("memory", "disk"):
        with tempfile.TemporaryDirectory(dir=Path(__file__).parent) as folder:
            adds, samples, grown = measure(Path(folder) if place == "disk" else None)
        for what, times in (("add", adds), ("sample", samples)):
            spread = max(times) / min(times)
            note = ", ".join(f"{t * 1e3:.2f}" for t in times) + " ms for 512 rows at 1e4 ... 1e7"
            name = f"bank in {place}: slowest / fastest {what}, 1e4 to 1e7 rows"
            ratios.append(Ratio(name, spread, "<= 2", spread <= 2, note))
        if place == "disk":
            note = "largest growth over all sizes; ten million rows are 1.2 GB"
            ratios.append(
                Ratio("bank on disk: resident memory, MB", grown, "<= 50", grown <= 50, note)
            )
    ratios += past_memory()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"(peak resident memory of the whole benchmark: {peak:.0f} MB)")
    show(ratios)


if __name__ == "__main__":
    main()
