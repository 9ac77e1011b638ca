"""Attention between sets of points."""

from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention, softmax

__all__ = ["SelfAttention", "attend", "soft_k_means"]


def attend(
    Q: Tensor,
    K: Tensor,
    V: Tensor,
    *,
    heads: int,
    scale_by_width: bool = False,
    by_distance: bool = False,
) -> Tensor:
    """Mixes the values of one set for each query of another: multi-head attention.

    The projections in front are the caller's. There is none behind: a linear layer follows
    wherever this is used, and two linear maps in a row are one.

    Args:
        Q: Queries, (B, N, E).
        K: Keys, (B, M, E).
        V: Values, (B, M, F), F a multiple of heads.
        heads: Into how many heads E and F are cut.
        scale_by_width: Divide scores by the root of E instead of a head's width, as the official
            code does.
        by_distance: Score a key by its distance from the query instead of their product.

    Returns:
        One mixture per query, (B, N, F).
    """
    q, k, v = (_cut(x, heads) for x in (Q, K, V))
    scale = _scale(Q, heads, scale_by_width)
    # -|q - k|^2 / 2 is q k - |k|^2 / 2 up to what is the same for all keys.
    offset = -0.5 * scale * k.square().sum(dim=-1).unsqueeze(-2) if by_distance else None
    mixed = scaled_dot_product_attention(q, k, v, attn_mask=offset, scale=scale)
    return mixed.transpose(1, 2).flatten(-2)  # from (B, heads, N, F / heads)


def soft_k_means(
    Q: Tensor, K: Tensor, *, heads: int, rounds: int, scale_by_width: bool = False
) -> Tensor:
    """Moves each key to the queries that choose it: soft k-means, started at the keys.

    In `attend` by distance, the product of all heads says how likely a query chooses a key. Each
    round replaces the keys by the mean of themselves, as they were, and the queries so weighted.

    Args:
        Q: Queries, (B, N, E).
        K: Keys, (B, M, E).
        heads: As in `attend`.
        rounds: How often.
        scale_by_width: As in `attend`.

    Returns:
        The keys, (B, M, E).
    """
    scale, start = _scale(Q, heads, scale_by_width), K
    for _ in range(rounds):
        score = Q @ K.mT - 0.5 * K.square().sum(dim=-1).unsqueeze(-2)  # (B, N, M)
        share = softmax(scale * score, dim=-1)
        K = (start + share.mT @ Q) / (1 + share.sum(dim=1).unsqueeze(-1))
    return K


def _scale(Q: Tensor, heads: int, by_width: bool) -> float:
    width: int = Q.shape[-1] if by_width else Q.shape[-1] // heads
    return float(width**-0.5)


def _cut(x: Tensor, heads: int) -> Tensor:
    return x.reshape(*x.shape[:-1], heads, -1).transpose(1, 2)


class SelfAttention(nn.Module):
    """Lets the points of a set see each other.

    Args:
        width: Features of a point, E.
        heads: Attention heads.
    """

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm = nn.LayerNorm(width)
        self.inwards = nn.Linear(width, 3 * width, bias=False)
        self.outwards = nn.Linear(width, width)

    def forward(self, e: Tensor) -> Tensor:
        """Adds to each point what it sees, (B, M, E)."""
        Q, K, V = self.inwards(self.norm(e)).chunk(3, dim=-1)
        seen: Tensor = self.outwards(attend(Q, K, V, heads=self.heads))
        return e + seen
