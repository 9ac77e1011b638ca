"""Attention between sets of points."""

from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

__all__ = ["attend"]


def attend(Q: Tensor, K: Tensor, V: Tensor, *, heads: int, scale_by_width: bool = False) -> Tensor:
    """Mixes the values of one set for each query of another: multi-head attention.

    The projections in front are the caller's. There is none behind: a linear layer follows
    wherever this is used, and two linear maps in a row are one.

    Args:
        Q: Queries, (B, N, E).
        K: Keys, (B, M, E).
        V: Values, (B, M, E).
        heads: Into how many heads E is cut.
        scale_by_width: Divide scores by the root of E instead of a head's width, as the official
            code does.

    Returns:
        One mixture per query, (B, N, E).
    """
    width = Q.shape[-1] if scale_by_width else Q.shape[-1] // heads
    q, k, v = (x.unflatten(-1, (heads, -1)).transpose(1, 2) for x in (Q, K, V))
    mixed = scaled_dot_product_attention(q, k, v, scale=width**-0.5)  # (B, heads, N, E/heads)
    return mixed.transpose(1, 2).flatten(-2)
