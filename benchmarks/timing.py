"""Ratios of times measured in one run: noise hits both sides alike."""

import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch.utils.flop_counter import FlopCounterMode

from neural_complexity.experiments.base.rows import commit

__all__ = ["Ratio", "matmul_peak", "operations", "seconds_each", "show"]


@dataclass(frozen=True)
class Ratio:
    """One measured ratio and the bar it should reach."""

    name: str
    value: float
    bar: str
    reached: bool
    note: str


def seconds_each(*functions: Callable[[], object], rounds: int = 9, warmup: int = 2) -> list[float]:
    """Times functions in turns and returns each one's best time.

    On a shared machine what disturbs a function comes and goes; in turns all see the same, and the
    best of several rounds is the time without it.
    """
    for function in functions:
        for _ in range(warmup):
            function()
    best = [float("inf")] * len(functions)
    for _ in range(rounds):
        for i, function in enumerate(functions):
            start = time.perf_counter()
            function()
            best[i] = min(best[i], time.perf_counter() - start)
    return best


def operations(function: Callable[[], object]) -> int:
    """Returns the floating-point operations of a function's products."""
    with FlopCounterMode(display=False) as counter:
        function()
    return int(counter.get_total_flops())


def matmul_peak() -> tuple[Callable[[], object], float]:
    """Returns a large float32 product and its number of floating-point operations."""
    a, b = torch.randn(2048, 2048), torch.randn(2048, 2048)
    return lambda: a @ b, 2 * 2048.0**3


def show(ratios: list[Ratio]) -> None:
    """Prints the ratios, and appends them to a file of rows under `benchmarks/`."""
    for ratio in ratios:
        mark = "ok  " if ratio.reached else "MISS"
        print(f"{mark} {ratio.name:58} {ratio.value:8.2f}  (bar {ratio.bar})  {ratio.note}")
    rows = "".join(json.dumps({**asdict(ratio), "commit": commit()}) + "\n" for ratio in ratios)
    with (Path(__file__).parent / "last-run.jsonl").open("a") as file:
        file.write(rows)
