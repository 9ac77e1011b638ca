import pytest
import torch

from neural_complexity.model.heads import HEADS, Head
from neural_complexity.model.network import NeuralComplexity


def test_every_file_of_the_folder_is_a_head() -> None:
    assert set(HEADS) == {"posterior", "direct"}
    assert all(issubclass(head, Head) and head.name == name for name, head in HEADS.items())


@pytest.mark.parametrize("name", HEADS)
def test_a_head_that_does_not_see_predictions_ignores_those_on_training_points(name: str) -> None:
    nc = NeuralComplexity(2, 1, head=name, width=8, heads=2)
    X_tr, Y_tr, X_te = torch.randn(2, 5, 2), torch.randn(2, 5, 1), torch.randn(2, 6, 2)
    context, H_te = nc.encode(X_tr, Y_tr, X_te), torch.randn(2, 6, 1)
    a, b = (nc.losses(context, torch.randn(2, 5, 1), H_te) for _ in range(2))
    assert torch.allclose(a, b) != HEADS[name].sees_predictions
