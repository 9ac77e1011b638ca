import torch
from matplotlib.figure import Figure as Canvas

from neural_complexity.experiments.base.plots import plot_targets, scatter_gaps


def test_a_scatter_says_its_score_and_leaves_out_what_is_far() -> None:
    ax = Canvas().subplots()
    true = torch.linspace(0, 1, 100)
    far = torch.cat([true, torch.tensor([1e6])])
    assert scatter_gaps(ax, far, far, "red", cut=0.05) == "R2 = 1.0000"
    assert ax.get_xlim()[1] < 2


def test_a_task_is_drawn_with_what_its_learner_predicts() -> None:
    ax = Canvas().subplots()
    task = {name: torch.randn(5, 1) for name in ("X_tr", "Y_tr", "X_te", "Y_te", "H_te")}
    plot_targets(ax, task)
    assert ax.lines[2].get_ydata().tolist() == task["H_te"][:, 0].tolist()  # type: ignore[union-attr]
