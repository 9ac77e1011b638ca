"""All complexity measures by name, which of them survive a rescaling of layers, and NC as one."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from neural_complexity.baselines.measures import (
    confidence,
    loss_gradients,
    margins,
    norms,
    representation,
    sharpness,
    spectra,
)
from neural_complexity.baselines.measures.layers import evaluated
from neural_complexity.learners.batched import BatchedLearner
from neural_complexity.model.judgement import judge
from neural_complexity.model.network import NeuralComplexity
from neural_complexity.snapshot import take_snapshot
from neural_complexity.task import Task

__all__ = ["MEASURES", "RESCALING_INVARIANT", "Measure", "evaluate_measures", "nc_measure"]

# Of trained learners, the learners that they began as, and their data without test targets: one
# number for each learner, (B,). The larger it is, the worse h should generalize.
Measure = Callable[[BatchedLearner, BatchedLearner, Task], Tensor]

MEASURES: dict[str, Measure] = {
    "parameters": norms.parameters,
    "vc dimension": norms.vc_dimension,
    "parameter norm": norms.parameter_norm,
    "distance from initialization": norms.distance_from_initialization,
    "frobenius sum": norms.frobenius_sum,
    "frobenius product": norms.frobenius_product,
    "frobenius distance": norms.frobenius_distance,
    "spectral sum": norms.spectral_sum,
    "spectral product": norms.spectral_product,
    "spectral distance": norms.spectral_distance,
    "frobenius distance over spectral": norms.frobenius_distance_over_spectral,
    "l1,inf product": partial(norms.group_norm, norm="L1,inf"),
    "l3,1.5 product": partial(norms.group_norm, norm="L3,1.5"),
    "orthogonality": norms.orthogonality,
    "path norm": norms.path_norm,
    "output margin": margins.output_margin,
    "inverse margin": margins.inverse_margin,
    "normalised output margin": margins.normalised_output_margin,
    "input margin": margins.input_margin,
    "frobenius product over margin": margins.frobenius_product_over_margin,
    "spectral product over margin": margins.spectral_product_over_margin,
    "path norm over margin": margins.path_norm_over_margin,
    "spectral complexity": margins.spectral_complexity,
    "sharpness": sharpness.random_sharpness,
    "sharpness, magnitude-aware": partial(sharpness.random_sharpness, scale=torch.abs),
    "sharpness, worst case": sharpness.worst_sharpness,
    "sharpness, worst case, magnitude-aware": partial(sharpness.worst_sharpness, scale=torch.abs),
    "pac-bayes": sharpness.pac_bayes,
    "pac-bayes, origin": partial(sharpness.pac_bayes, origin=True),
    "pac-bayes, worst case": partial(sharpness.pac_bayes, worst=True),
    "pac-bayes, magnitude-aware": sharpness.pac_bayes_magnitude,
    "pac-bayes, magnitude-aware, origin": partial(sharpness.pac_bayes_magnitude, origin=True),
    "pac-bayes, magnitude-aware, worst case": partial(sharpness.pac_bayes_magnitude, worst=True),
    "sam sharpness": sharpness.sam_sharpness,
    "adaptive sharpness": sharpness.adaptive_sharpness,
    "cross-entropy": loss_gradients.training_loss,
    "training error": loss_gradients.training_error,
    "loss decrease": loss_gradients.loss_decrease,
    "gradient norm": loss_gradients.gradient_norm,
    "gradient noise": loss_gradients.gradient_noise,
    "gradient noise at initialization": loss_gradients.gradient_noise_at_initialization,
    "fisher-rao norm": loss_gradients.fisher_rao_norm,
    "input gradient": loss_gradients.input_gradient,
    "power-law exponent": spectra.power_law_exponent,
    "weighted power-law exponent": spectra.weighted_power_law_exponent,
    "log alpha-norm": spectra.log_alpha_norm,
    "log spectral norm": spectra.log_spectral_norm,
    "stable rank": spectra.stable_rank,
    "frobenius over spectral": spectra.frobenius_over_spectral,
    "effective rank": spectra.effective_rank,
    "davies-bouldin index": representation.davies_bouldin_index,
    "mixup error": representation.mixup_error,
    "davies-bouldin times mixup": representation.davies_bouldin_times_mixup,
    "mixup margin": representation.mixup_margin,
    "augmentation error": representation.augmentation_error,
    "augmentation margin": representation.augmentation_margin,
    "lack of confidence": confidence.lack_of_confidence,
    "difference of confidences": confidence.difference_of_confidences,
    "predictive entropy": confidence.predictive_entropy,
    "difference of entropies": confidence.difference_of_entropies,
    "average thresholded confidence": confidence.average_thresholded_confidence,
    "dispersity": confidence.dispersity,
    "calibration error": confidence.calibration_error,
    "perturbed disagreement": confidence.perturbed_disagreement,
}

# Measures that stay where the weights and biases of a layer with ReLUs are multiplied by c, and the
# weights of the next one divided by it: the network computes the same. All others change.
RESCALING_INVARIANT = (
    "parameters",
    "vc dimension",
    "frobenius product",
    "spectral product",
    "l1,inf product",
    "l3,1.5 product",
    "path norm",
    "output margin",
    "inverse margin",
    "normalised output margin",
    "input margin",
    "frobenius product over margin",
    "spectral product over margin",
    "path norm over margin",
    "sharpness, magnitude-aware",
    "sharpness, worst case, magnitude-aware",
    "adaptive sharpness",
    "cross-entropy",
    "training error",
    "gradient noise at initialization",
    "fisher-rao norm",
    "input gradient",
    "power-law exponent",
    "log spectral norm",
    "stable rank",
    "frobenius over spectral",
    "effective rank",
    "davies-bouldin index",
    "mixup error",
    "davies-bouldin times mixup",
    "mixup margin",
    "augmentation error",
    "augmentation margin",
    "lack of confidence",
    "difference of confidences",
    "predictive entropy",
    "difference of entropies",
    "average thresholded confidence",
    "dispersity",
    "calibration error",
    "perturbed disagreement",
)


def nc_measure(nc: NeuralComplexity) -> Measure:
    """Returns NC as a measure: the gap that it predicts, in units of the loss.

    It looks at the test inputs, and not at the initial learners.
    """

    def predicted_gap(h: BatchedLearner, initial: BatchedLearner, task: Task) -> Tensor:
        with torch.no_grad():
            return judge(nc, take_snapshot(evaluated(h), task)).gap

    return predicted_gap


def evaluate_measures(
    measures: Mapping[str, Measure], h: BatchedLearner, initial: BatchedLearner, task: Task
) -> dict[str, Tensor]:
    """Returns the values of measures, (B,) each, none of which sees test labels.

    Raises:
        ValueError: If a measure does not return one value per model.
    """
    seen, found = replace(task, Y_te=torch.zeros_like(task.Y_te)), dict[str, Tensor]()
    with sharpness.shared_radii():
        for name, measure in measures.items():
            found[name] = measure(h, initial, seen)
            if tuple(found[name].shape) != (len(task),):
                got = f"shape {tuple(found[name].shape)} for {len(task)} models"
                raise ValueError(f"{name} must return one value per model, got {got}")
    return found
