"""Complexity measures of confidence: on training points, on test inputs, and of perturbed copies.

They look at test inputs as NC does, and like NC never at test targets.
"""

import math

import torch
from torch import Tensor
from torch.linalg import matrix_norm

from neural_complexity.baselines.measures.layers import evaluated, logits
from neural_complexity.baselines.measures.perturbation import draw, shifted
from neural_complexity.learners.batched import BatchedLearner
from neural_complexity.losses import zero_one
from neural_complexity.task import Task

__all__ = [
    "average_thresholded_confidence",
    "calibration_error",
    "difference_of_confidences",
    "difference_of_entropies",
    "dispersity",
    "lack_of_confidence",
    "perturbed_disagreement",
    "predictive_entropy",
]

BINS = 15  # of confidence
SIGMA = 0.1  # of the noise of perturbed copies, in units of each parameter
COPIES = 64  # that are averaged


def lack_of_confidence(h: BatchedLearner, initial: BatchedLearner, task: Task) -> Tensor:
    """Returns one minus the mean confidence max_c p_h(c | x) on test inputs.

    The test error, if h is calibrated (Hendrycks and Gimpel, 2017).
    """
    return 1 - _confidence(_test_logits(h, task)).mean(dim=1)


def difference_of_confidences(h: BatchedLearner, initial: BatchedLearner, task: Task) -> Tensor:
    """Returns the mean confidence on training points minus that on test inputs.

    Guillory et al. (2021).
    """
    train = _confidence(logits(evaluated(h), task)).mean(dim=1)
    return train - _confidence(_test_logits(h, task)).mean(dim=1)


def predictive_entropy(h: BatchedLearner, initial: BatchedLearner, task: Task) -> Tensor:
    """Returns the mean over test inputs of -sum_c p_h(c | x) log p_h(c | x).

    Guillory et al. (2021).
    """
    return _entropy(_test_logits(h, task)).mean(dim=1)


def difference_of_entropies(h: BatchedLearner, initial: BatchedLearner, task: Task) -> Tensor:
    """Returns the mean entropy on test inputs minus that on training points.

    Guillory et al. (2021).
    """
    return predictive_entropy(h, initial, task) - _entropy(logits(evaluated(h), task)).mean(dim=1)


def average_thresholded_confidence(
    h: BatchedLearner, initial: BatchedLearner, task: Task
) -> Tensor:
    """Returns the share of test inputs whose confidence is below a threshold.

    As many training points are below it as are classified wrongly (Garg et al., 2022, who take
    points that are held out for it; a threshold of training points is too low).
    """
    H_tr = logits(evaluated(h), task)
    wrong = zero_one(H_tr, task.Y_tr).sum(dim=1, keepdim=True).long()  # (B, 1)
    ascending = _confidence(H_tr).sort(dim=1).values
    threshold = ascending.gather(1, wrong.clamp(max=ascending.shape[1] - 1))  # (B, 1)
    below = _confidence(_test_logits(h, task)) < threshold  # (B, N)
    return below.to(H_tr.dtype).mean(dim=1)


def dispersity(h: BatchedLearner, initial: BatchedLearner, task: Task) -> Tensor:
    """Returns -|P|_* / sqrt(N C), with P the probabilities of classes of the test inputs, (N, C).

    The nuclear norm is large where predictions are confident and of all classes (Deng et al.,
    2023).
    """
    P = _test_logits(h, task).softmax(dim=-1)  # (B, N, C)
    norm: Tensor = matrix_norm(P, "nuc")
    return -norm / math.sqrt(P.shape[1] * P.shape[2])


def calibration_error(h: BatchedLearner, initial: BatchedLearner, task: Task) -> Tensor:
    """Returns the expected calibration error of the training points.

    sum_b n_b / M |accuracy_b - confidence_b|, over 15 equal bins of confidence (Guo et al., 2017).
    """
    H_tr = logits(evaluated(h), task)
    confidence, right = _confidence(H_tr), 1 - zero_one(H_tr, task.Y_tr)  # (B, M)
    bins = (confidence * BINS).long().clamp(max=BINS - 1)
    differences = confidence.new_zeros(len(H_tr), BINS).scatter_add(1, bins, right - confidence)
    return differences.abs().sum(dim=1) / H_tr.shape[1]


def perturbed_disagreement(h: BatchedLearner, initial: BatchedLearner, task: Task) -> Tensor:
    """Returns the share of test inputs that copies with perturbed parameters classify otherwise.

    Of 64 copies, with w + 0.1 |w| z in the place of w and z Gaussian. Disagreement predicts the
    test error of networks that were trained twice (Jiang et al., 2022); copies need no training.
    """
    learner, shares = evaluated(h), []
    chosen = _test_logits(h, task).argmax(dim=-1)  # (B, N)
    for i in range(COPIES):
        z = draw(learner, i)
        copy = shifted(learner, {n: SIGMA * learner.values[n].abs() * z[n] for n in z})
        shares.append(zero_one(copy(task.X_te), chosen).mean(dim=1))
    return torch.stack(shares).mean(dim=0)


def _test_logits(h: BatchedLearner, task: Task) -> Tensor:
    return evaluated(h)(task.X_te)


def _confidence(H: Tensor) -> Tensor:
    return H.softmax(dim=-1).amax(dim=-1)


def _entropy(H: Tensor) -> Tensor:
    entropy: Tensor = torch.special.entr(H.softmax(dim=-1)).sum(dim=-1)
    return entropy
