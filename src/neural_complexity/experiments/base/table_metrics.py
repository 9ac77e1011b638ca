"""Metrics of labels that are no means over points, for many sets of labels at once."""

import torch
from scipy.stats import rankdata
from torch import Tensor

__all__ = ["DRAWN_METRICS", "drawn_metrics"]

DRAWN_METRICS = ("ROC AUC", "F1")


def drawn_metrics(targets: Tensor, P: Tensor) -> Tensor:
    """Returns `DRAWN_METRICS` of probabilities at sets of labels, (sets, metrics), or NaN.

    Both are means over classes: of those that a set of labels has, and lacks in part, the area
    under the curve of each against the others; of those that labels or answers have, F1.

    Args:
        targets: Labels, (sets, N).
        P: Probabilities, or anything that orders points alike, (N, C).
    """
    N, C = P.shape
    ranks = torch.from_numpy(rankdata(P.double().numpy(), axis=0))  # (N, C)
    answers = P.argmax(dim=1)
    areas, f1 = [], []
    for c in range(C):
        own = (targets == c).double()  # (sets, N)
        count = own.sum(dim=1)
        area = (own @ ranks[:, c] - count * (count + 1) / 2) / (count * (N - count))
        areas.append(area.where((count > 0) & (count < N), torch.nan))
        said = (answers == c).double()
        f1.append(2 * (own @ said) / (count + said.sum()))  # 0 / 0 is NaN
    return torch.stack([torch.stack(areas).nanmean(dim=0), torch.stack(f1).nanmean(dim=0)], dim=1)
