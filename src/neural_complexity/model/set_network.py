"""The set network of section 3.3: encoder, cross-attention, decoder."""

from itertools import pairwise

import torch
from torch import Tensor, nn

from neural_complexity.model.architecture import Architecture
from neural_complexity.model.attention import SelfAttention, attend, soft_k_means

__all__ = ["SetNetwork"]


class SetNetwork(nn.Module):
    """Returns one row of outputs per test point.

    Points are embedded by one shared encoder; attention takes Q from test points, K and V from
    training points, and V also sees the targets.

    Args:
        features: Features of a point.
        targets: Numbers per target.
        outputs: Numbers per test point.
        architecture: Sizes and switches.
        metric_features: With attention by distance, from how many of the first features queries and
            keys are made, by two layers of their own; from the common encoding if 0.
    """

    def __init__(
        self,
        features: int,
        targets: int,
        outputs: int,
        architecture: Architecture,
        *,
        metric_features: int = 0,
    ) -> None:
        super().__init__()
        a, width = architecture, architecture.width
        self.heads, self.scale_by_width = a.heads, a.scale_by_width
        self.architecture = a
        self.encoder = nn.Sequential(*_hidden(features, width, a.encoder_layers))
        # Products that share an input are one: K with V, Q with the decoder's view of the point.
        # None has a bias: K's would not change the attention, the others follow from later ones.
        self.train_parts = [0 if a.metric else width, width if a.bias or not a.bilinear else 0]
        self.on_train = _linear(width, sum(self.train_parts))
        sees, acts = (width, targets * width) if a.bilinear else (targets, width)
        self.on_targets = nn.Linear(sees, acts, bias=False)
        last = a.decoder_layers == 1  # the decoder's first layer is its last
        decoded = outputs if last else width
        self.metric_layers = nn.Sequential()
        if a.metric and metric_features:
            first, second = nn.Linear(metric_features, width), nn.Linear(width, width, bias=False)
            self.metric_layers.extend([first, nn.ReLU(inplace=True), second])
        self.metric_features = metric_features
        self.test_parts = [0 if self.metric_layers else width, decoded if a.query_skip else 0]
        self.on_test = _linear(width, sum(self.test_parts))
        self.on_attention = nn.Linear(width, decoded)
        self.decoder = nn.Sequential()  # the layers after the first
        if not last:
            self.decoder.append(nn.ReLU(inplace=True))
            self.decoder.extend(_hidden(width, width, a.decoder_layers - 2))
            self.decoder.append(nn.Linear(width, outputs))
        self.self_attention = nn.Sequential(
            *(SelfAttention(width, a.heads) for _ in range(a.self_layers))
        )
        if a.vote:
            self._start_with_votes(last)

    def _start_with_votes(self, last: bool) -> None:
        """Sets the decoder's outputs to zero, so that at first the votes alone count."""
        final = self.on_attention if last else self.decoder[-1]
        assert isinstance(final, nn.Linear)
        nn.init.zeros_(final.weight)
        nn.init.zeros_(final.bias)
        if last and self.architecture.query_skip:
            nn.init.zeros_(self.on_test.weight[self.test_parts[0] :])

    def forward(self, F_tr: Tensor, T_tr: Tensor, F_te: Tensor) -> Tensor:
        """Answers for each test point.

        Args:
            F_tr: Features of the training points, (B, M, features).
            T_tr: Training targets, (B, M, targets), or several groups of them that are asked about
                one by one, (B, M, G, targets).
            F_te: Features of the test points, (B, N, features).

        Returns:
            One row per test point, (B, N, outputs), or one per test point and group,
            (B, N, G, outputs).
        """
        (B, M, _), N = F_tr.shape, F_te.shape[1]
        # Layers see points one after another, (BM, ...): over three axes a ReLU would write over a
        # view, which autograd pays for with copies. A product for both sets would have to be cut.
        e_tr = self.encoder(F_tr.flatten(0, 1))  # (BM, E)
        if self.self_attention:
            e_tr = self.self_attention(e_tr.view(B, M, -1)).flatten(0, 1)
        K, V = self.on_train(e_tr).view(B, M, -1).split(self.train_parts, dim=-1)
        Q, skip = self.on_test(self.encoder(F_te.flatten(0, 1))).split(self.test_parts, dim=-1)
        Q = Q.view(B, N, -1)  # (B, N, E)
        if self.metric_layers:
            Q, K = (self.metric_layers(F[..., : self.metric_features]) for F in (F_te, F_tr))
        elif self.architecture.metric:
            K = (e_tr @ self.on_test.weight[: Q.shape[-1]].T).view(B, M, -1)  # (B, M, E)
        if self.architecture.metric:
            rounds, by_width = self.architecture.rounds, self.scale_by_width
            K = soft_k_means(Q, K, heads=self.heads, rounds=rounds, scale_by_width=by_width)
        e = self._mix(Q, K, self._values(e_tr, V, T_tr))  # (B, N, [G,] E)
        e = self.on_attention(e.flatten(0, 1))  # (BN, [G,] E), or (BN, [G,] outputs) if last
        if skip.shape[-1]:
            e = e + skip.view(B * N, *[1] * (e.ndim - 2), -1)
        if self.architecture.pool_first:
            e = e.view(B, N, *e.shape[1:]).mean(dim=1)  # (B, [G,] E)
        out: Tensor = self.decoder(e)
        out = out.view(B, -1, *out.shape[1:]).expand(-1, N, *[-1] * (out.ndim - 1))
        return out + self._votes(Q, K, T_tr).view_as(out) if self.architecture.vote else out

    def place(self, F: Tensor) -> Tensor:
        """Returns where points (..., features) stand in the space of attention by distance.

        Returns:
            Their places, (..., E).
        """
        assert self.architecture.metric, "only attention by distance has such a space"
        if self.metric_layers:
            places: Tensor = self.metric_layers(F[..., : self.metric_features])
        else:
            places = self.encoder(F) @ self.on_test.weight[: self.test_parts[0]].T
        return places

    def take_metric(self, other: "SetNetwork") -> None:
        """Copies where another network places points, if both have such layers of one size.

        Args:
            other: The network, whose places come from its common encoding; stays as it is.
        """
        if not self.metric_layers or not other.architecture.metric or other.metric_layers:
            return
        learned = dict(other.encoder.state_dict())
        learned["2.weight"] = other.on_test.weight[: other.test_parts[0]]
        own, its = (
            {name: t.shape for name, t in state.items()}
            for state in (self.metric_layers.state_dict(), learned)
        )
        if self.heads == other.heads and own == its:
            self.metric_layers.load_state_dict(learned)
            self.metric_layers.requires_grad_(False)

    def _values(self, e_tr: Tensor, V: Tensor, T_tr: Tensor) -> Tensor:
        """Lets targets act on embeddings, (B, M, [G,] E)."""
        acted: Tensor
        if not self.architecture.bilinear:
            acted = self.on_targets(T_tr)
        else:
            T = T_tr if T_tr.ndim == 4 else T_tr.unsqueeze(2)  # (B, M, G, targets)
            products: Tensor = self.on_targets(e_tr).view(*T.shape[:2], T.shape[-1], -1)
            acted = T @ products  # (B, M, G, E)
            acted = acted if T_tr.ndim == 4 else acted.squeeze(2)
        if V.shape[-1]:
            acted = acted + (V.unsqueeze(2) if T_tr.ndim == 4 else V)
        return acted

    def _mix(self, Q: Tensor, K: Tensor, V: Tensor) -> Tensor:
        """Attends to values with or without groups, (B, N, [G,] E)."""
        if V.ndim == 3:
            return self._attend(Q, K, V)
        # All groups share the attention, so they are one long value.
        cut = V.unflatten(-1, (self.heads, -1)).transpose(2, 3)  # (B, M, heads, G, E / heads)
        mixed = self._attend(Q, K, cut.flatten(2))
        return mixed.view(*Q.shape[:2], *cut.shape[2:]).transpose(2, 3).flatten(3)

    def _votes(self, Q: Tensor, K: Tensor, T_tr: Tensor) -> Tensor:
        """Returns the log of the attention on each target, all heads multiplied, (B, N, C)."""
        T = T_tr.flatten(2)  # (B, M, C)
        falls = self._attend(Q, K, T.repeat(1, 1, self.heads))
        falls = falls.view(*Q.shape[:2], self.heads, -1)  # (B, N, heads, C)
        return falls.clamp(min=1e-7).log().sum(dim=2)

    def _attend(self, Q: Tensor, K: Tensor, V: Tensor) -> Tensor:
        options = {"scale_by_width": self.scale_by_width, "by_distance": self.architecture.metric}
        return attend(Q, K, V, heads=self.heads, **options)


class _Nothing(nn.Module):
    """A linear layer without outputs."""

    weight = torch.empty(0)

    def forward(self, e: Tensor) -> Tensor:
        return e[..., :0]


def _linear(features: int, outputs: int) -> nn.Linear | _Nothing:
    return nn.Linear(features, outputs, bias=False) if outputs else _Nothing()


def _hidden(features: int, width: int, layers: int) -> list[nn.Module]:
    """Returns linear layers, each with a ReLU that writes over its input: memory is what costs."""
    pairs = pairwise([features, *[width] * layers])
    return [layer for pair in pairs for layer in (nn.Linear(*pair), nn.ReLU(inplace=True))]
