import pytest
import torch
from matplotlib.figure import Figure as Canvas

from neural_complexity.experiments.base.plots import (
    learner_axis,
    plot_meta_training,
    plot_points,
    plot_targets,
    scatter_gaps,
)
from neural_complexity.experiments.base.training import Head
from neural_complexity.meta.trainer import Status


def test_a_scatter_says_its_score_and_leaves_out_what_is_far() -> None:
    ax = Canvas().subplots()
    true = torch.linspace(0, 1, 100)
    far = torch.cat([true, torch.tensor([1e6])])
    assert scatter_gaps(ax, far, far, "red", cut=0.05) == "R2 = 1.0000"
    assert ax.get_xlim()[1] < 2


def test_a_task_is_drawn_with_each_points_loss_above_the_training_loss() -> None:
    top, bottom = Canvas().subplots(2)
    sets = ("X_tr", "Y_tr", "H_tr", "X_te", "Y_te", "H_te")
    task = {name: torch.randn(5, 1) for name in sets}
    plot_targets(top, task)
    told: dict[Head, torch.Tensor] = {"direct": torch.zeros(5), "posterior": torch.ones(5)}
    true = plot_points(bottom, task, told)
    loss_tr = (task["H_tr"] - task["Y_tr"]).square().mean().item()
    assert true[0].item() == pytest.approx((task["H_te"] - task["Y_te"])[0, 0] ** 2 - loss_tr)
    labels = bottom.get_legend_handles_labels()[1]
    assert labels == ["true", "NC direct", "NC posterior"]


def test_axes_and_curves_are_those_of_their_data() -> None:
    ax = Canvas().subplots()
    learner_axis(ax, (1, 2, 16))
    assert ax.get_xticks().tolist() == [1, 2, 16]
    scores = [Status(i, 2, 0, 0, float(i), 0.0, 0.5) for i in (1, 2)]
    (lines,) = plot_meta_training({"direct": scores}, 0.9).axes
    assert lines.lines[0].get_xdata().tolist() == [1.0, 2.0]  # type: ignore[union-attr]
