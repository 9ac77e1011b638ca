"""Attention between sets of points, and the set network of section 3.3 that is built of it."""

from functools import partial
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention, softmax

from neural_complexity.model.architecture import Architecture

__all__ = ["SelfAttention", "SetNetwork", "attend", "soft_k_means"]


def attend(
    Q: Tensor,
    K: Tensor,
    V: Tensor,
    *,
    heads: int,
    by_width: bool = False,
    metric: bool = False,
    there: Tensor | None = None,
) -> Tensor:
    """Mixes the values (B, M, F) of keys (B, M, E) for each query (B, N, E), as (B, N, F).

    Projections are the caller's; none is behind, as a linear layer follows wherever this is used.
    Keys are scored by products, or by distance (`metric`), over the root of a head's width, or of E
    (`by_width`, the official code). Those that are not `there`, (B, M), are not seen.
    """
    q, k, v = (x.reshape(*x.shape[:-1], heads, -1).transpose(1, 2) for x in (Q, K, V))
    scale = (Q if by_width else q).shape[-1] ** -0.5
    # -|q - k|^2 / 2 is q k - |k|^2 / 2 up to what is the same for all keys.
    offset = -0.5 * scale * k.square().sum(dim=-1).unsqueeze(-2) if metric else None
    if there is not None:
        hidden = torch.zeros_like(there, dtype=q.dtype).masked_fill(~there, -torch.inf)
        offset = hidden[:, None, None] + (0 if offset is None else offset)
    mixed = scaled_dot_product_attention(q, k, v, attn_mask=offset, scale=scale)
    return mixed.transpose(1, 2).flatten(-2)  # from (B, heads, N, F / heads)


def soft_k_means(
    Q: Tensor, K: Tensor, *, heads: int, rounds: int, by_width: bool = False
) -> Tensor:
    """Moves each key, (B, M, E), to the queries, (B, N, E), that choose it: soft k-means.

    In `attend` by distance, the product of all heads says how likely a query chooses a key. Each
    round replaces the keys by the mean of themselves, as they were, and the queries so weighted.
    """
    scale, start = (Q.shape[-1] // (1 if by_width else heads)) ** -0.5, K
    for _ in range(rounds):
        score = Q @ K.mT - 0.5 * K.square().sum(dim=-1).unsqueeze(-2)  # (B, N, M)
        share = softmax(scale * score, dim=-1)
        K = (start + share.mT @ Q) / (1 + share.sum(dim=1).unsqueeze(-1))
    return K


class SelfAttention(nn.Module):
    """Lets the points of a set, (B, M, width), see each other."""

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


class SetNetwork(nn.Module):
    """Returns one row of outputs per test point.

    Points are embedded by one shared encoder; attention takes Q from test points, K and V from
    training points, and V also sees the targets. With attention by distance, two layers make
    queries and keys from the first `compared` features, or if 0 the common encoding does.
    """

    def __init__(
        self, features: int, targets: int, outputs: int, a: Architecture, *, compared: int = 0
    ) -> None:
        super().__init__()
        self.architecture, width = a, a.width
        self._attend = partial(attend, heads=a.heads, by_width=a.scale_by_width, metric=a.metric)
        self.encoder = nn.Sequential(*_hidden(features, width, a.encoder_layers))
        # Products that share an input are one: K with V, Q with the decoder's view of the point.
        # None has a bias: K's would not change the attention, the others follow from later ones.
        self.train_parts = [0 if a.metric else width, width if a.bias or not a.bilinear else 0]
        seen = sum(self.train_parts)
        self.on_train = nn.Linear(width, seen, bias=False) if seen else _Nothing()
        sees, acts = (width, targets * width) if a.bilinear else (targets, width)
        self.on_targets = nn.Linear(sees, acts, bias=False)
        last = a.decoder_layers == 1  # the decoder's first layer is its last
        decoded = outputs if last else width
        self.metric_layers, self.compared = nn.Sequential(), compared
        if a.metric and compared:
            first, second = nn.Linear(compared, width), nn.Linear(width, width, bias=False)
            self.metric_layers.extend([first, nn.ReLU(inplace=True), second])
        self.test_parts = [0 if self.metric_layers else width, decoded if a.query_skip else 0]
        seen = sum(self.test_parts)
        self.on_test = nn.Linear(width, seen, bias=False) if seen else _Nothing()
        final = self.on_attention = nn.Linear(width, decoded)
        self.decoder = nn.Sequential()  # the layers after the first
        if not last:
            hidden = _hidden(width, width, a.decoder_layers - 2)
            final = nn.Linear(width, outputs)
            self.decoder.extend([nn.ReLU(inplace=True), *hidden, final])
        layers = (SelfAttention(width, a.heads) for _ in range(a.self_layers))
        self.self_attention = nn.Sequential(*layers)
        if a.vote:  # at first the votes alone count
            nn.init.zeros_(final.weight)
            nn.init.zeros_(final.bias)
            if last and a.query_skip:
                nn.init.zeros_(self.on_test.weight[self.test_parts[0] :])

    def forward(self, F_tr: Tensor, T_tr: Tensor, F_te: Tensor) -> Tensor:
        """Answers for each test point, (B, N, [G,] outputs).

        Points are (B, M, features) and (B, N, features). Targets are (B, M, targets), or G groups
        of them that are asked about one by one, (B, M, G, targets).
        """
        a, (B, M, _), N = self.architecture, F_tr.shape, F_te.shape[1]
        # Layers see points one after another, (BM, ...): over three axes a ReLU would write over a
        # view, which autograd pays for with copies. A product for both sets would have to be cut.
        e_tr = self.encoder(F_tr.flatten(0, 1))  # (BM, E)
        if self.self_attention:
            e_tr = self.self_attention(e_tr.view(B, M, -1)).flatten(0, 1)
        K, V = self.on_train(e_tr).view(B, M, -1).split(self.train_parts, dim=-1)
        Q, skip = self.on_test(self.encoder(F_te.flatten(0, 1))).split(self.test_parts, dim=-1)
        Q = Q.view(B, N, -1)  # (B, N, E)
        if self.metric_layers:
            Q, K = self.place(F_te), self.place(F_tr)
        elif a.metric:
            K = (e_tr @ self.on_test.weight[: Q.shape[-1]].T).view(B, M, -1)  # (B, M, E)
        if a.metric:
            K = soft_k_means(Q, K, heads=a.heads, rounds=a.rounds, by_width=a.scale_by_width)
        T = T_tr if T_tr.ndim == 4 else T_tr.unsqueeze(2)  # (B, M, G, targets)
        acted: Tensor = self.on_targets(e_tr if a.bilinear else T)
        if a.bilinear:
            acted = T @ acted.view(B, M, T.shape[-1], -1)
        if V.shape[-1]:
            acted = acted + V.unsqueeze(2)  # (B, M, G, E)
        # All groups share the attention, so they are one long value.
        cut = acted.unflatten(-1, (a.heads, -1)).transpose(2, 3)  # (B, M, heads, G, E / heads)
        mixed = self._attend(Q, K, cut.flatten(2))
        e = mixed.view(B, N, *cut.shape[2:]).transpose(2, 3).flatten(3)  # (B, N, G, E)
        e = e if T_tr.ndim == 4 else e.squeeze(2)
        e = self.on_attention(e.flatten(0, 1))  # (BN, [G,] E), or (BN, [G,] outputs) if last
        if skip.shape[-1]:
            e = e + skip.view(B * N, *[1] * (e.ndim - 2), -1)
        if a.pool_first:
            e = e.view(B, N, *e.shape[1:]).mean(dim=1)  # (B, [G,] E)
        out: Tensor = self.decoder(e)
        out = out.view(B, -1, *out.shape[1:]).expand(-1, N, *[-1] * (out.ndim - 1))
        if a.vote:
            out = out + self._votes(Q, K, T_tr.flatten(2)).view_as(out)
        return out

    def votes(self, F_tr: Tensor, T_tr: Tensor, F_te: Tensor) -> Tensor:
        """Returns the log of the attention by distance on each target (B, M, C), (B, N, C)."""
        a, Q, K = self.architecture, self.place(F_te), self.place(F_tr)
        K = soft_k_means(Q, K, heads=a.heads, rounds=a.rounds, by_width=a.scale_by_width)
        return self._votes(Q, K, T_tr)

    def _votes(self, Q: Tensor, K: Tensor, T_tr: Tensor) -> Tensor:
        heads = self.architecture.heads  # all multiplied
        votes: Tensor = self._attend(Q, K, T_tr.repeat(1, 1, heads))
        each: Tensor = votes.unflatten(-1, (heads, -1)).clamp(min=1e-7).log()
        return each.sum(dim=2)  # (B, N, C)

    def place(self, F: Tensor) -> Tensor:
        """Returns where points (..., features) are in the space of attention by distance."""
        assert self.architecture.metric, "only attention by distance has such a space"
        if self.metric_layers:
            return self.metric_layers(F[..., : self.compared])  # type: ignore[no-any-return]
        encoded: Tensor = self.encoder(F)
        return encoded @ self.on_test.weight[: self.test_parts[0]].T

    def take_metric(self, other: "SetNetwork") -> None:
        """Copies where another network places points, if both have such layers of one size."""
        if not self.metric_layers or not other.architecture.metric or other.metric_layers:
            return
        learned = dict(other.encoder.state_dict())
        learned["2.weight"] = other.on_test.weight[: other.test_parts[0]]
        states = (self.metric_layers.state_dict(), learned)
        own, its = ({name: t.shape for name, t in state.items()} for state in states)
        if self.architecture.heads == other.architecture.heads and own == its:
            self.metric_layers.load_state_dict(learned)
            self.metric_layers.requires_grad_(False)


class _Nothing(nn.Module):
    """A linear layer without outputs."""

    weight = torch.empty(0)

    def forward(self, e: Tensor) -> Tensor:
        return e[..., :0]


def _hidden(features: int, width: int, layers: int) -> list[nn.Module]:
    """Returns linear layers, each with a ReLU that writes over its input: memory is what costs."""
    pairs = pairwise([features, *[width] * layers])
    return [layer for pair in pairs for layer in (nn.Linear(*pair), nn.ReLU(inplace=True))]
