import pytest
import torch

from neural_complexity.model.attention import attend


@pytest.mark.parametrize("scale_by_width", [False, True])
def test_it_is_softmax_attention_head_by_head(scale_by_width: bool) -> None:
    Q, K, V = torch.randn(2, 6, 8), torch.randn(2, 7, 8), torch.randn(2, 7, 8)
    mixed = []
    for head in (slice(0, 4), slice(4, 8)):
        scores = Q[..., head] @ K[..., head].mT / (8 if scale_by_width else 4) ** 0.5
        mixed.append(scores.softmax(dim=-1) @ V[..., head])
    expected = torch.cat(mixed, dim=-1)
    torch.testing.assert_close(attend(Q, K, V, heads=2, scale_by_width=scale_by_width), expected)
