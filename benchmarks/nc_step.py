"""An NC training step against the machine's own matmul peak."""

import torch

from neural_complexity.cores import hold_memory
from neural_complexity.meta.nc_loss import nc_loss
from neural_complexity.model.network import NeuralComplexity
from neural_complexity.seeding import stream
from neural_complexity.snapshot import Snapshot
from neural_complexity.tasks.families import Sinusoids
from timing import Ratio, matmul_peak, operations, seconds_each, show

BATCH = 512


def measure(width: int, rounds: int) -> tuple[float, float, float]:
    """Returns the step's rate, its time, and the matmul peak seen meanwhile."""
    task = Sinusoids().sample(BATCH, stream(0, "benchmark"))
    nc = NeuralComplexity.for_tasks(task, head="direct", width=width)
    adam = torch.optim.Adam(nc.parameters(), lr=1e-3, fused=True)
    snapshot = Snapshot(
        task.X_tr, task.Y_tr, torch.randn_like(task.Y_tr), task.X_te, torch.randn_like(task.Y_te)
    )

    def step() -> None:
        adam.zero_grad()
        nc_loss(nc, snapshot, task.Y_te).backward()
        adam.step()

    product, product_operations = matmul_peak()
    step_seconds, product_seconds = seconds_each(step, product, rounds=rounds)
    # The counter does not know this machine's attention: two products forward, four backward.
    attention = 6 * 2 * BATCH * task.X_te.shape[1] * task.X_tr.shape[1] * width
    rate = (operations(step) + attention) / step_seconds
    return rate, step_seconds, product_operations / product_seconds


def main() -> None:
    hold_memory()
    bars = {128: 0.4, 256: 0.4, 1024: 0.75}
    measured = {width: measure(width, rounds=16000 // width) for width in bars}
    peak = max(seen for _, _, seen in measured.values())  # one for all: the machine's best
    show(
        [
            Ratio(
                f"NC step at width {width}, batch {BATCH}: share of matmul peak",
                rate / peak,
                f">= {bars[width]}",
                rate / peak >= bars[width],
                f"{rate / 1e9:.0f} of {peak / 1e9:.0f} GFLOP/s, {seconds * 1e3:.0f} ms",
            )
            for width, (rate, seconds, _) in measured.items()
        ]
    )


if __name__ == "__main__":
    main()
