"""Calibrates the NC of digits that ships on points that it has not learned from.

`python benchmarks/calibrate_digits.py` writes its file again: the weights stay, the calibration is
new. Takes two minutes.
"""

from dataclasses import replace
from pathlib import Path

import torch

import neural_complexity
from neural_complexity import NeuralComplexity
from neural_complexity.experiments.base.unseen_digits import NOTE, unseen_digits, unseen_learners

SIZES, TOGETHER, SEED = 32, 32, 0


def main() -> None:
    torch.set_num_threads(1)
    nc = NeuralComplexity.pretrained("digits")
    nc.calibrate(unseen_learners(nc, SIZES, TOGETHER, seed=SEED))
    assert nc.calibration is not None
    note = NOTE.format(len(unseen_digits(nc)[0]))
    nc.calibration = replace(nc.calibration, note=note)
    nc.save(Path(neural_complexity.__file__).parent / "pretrained" / "digits.safetensors")
    print(nc.calibration, note)


if __name__ == "__main__":
    main()
