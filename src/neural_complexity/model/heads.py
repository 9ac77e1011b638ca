"""The set network of section 3.3, and the two heads that ask it different questions."""

from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn.functional import softplus

from neural_complexity.losses import Belief, Categorical, Gaussian
from neural_complexity.model.attention import SelfAttention, attend, gather

__all__ = ["DirectHead", "PosteriorHead", "SetNetwork", "Sets"]


@dataclass(frozen=True)
class Sets:
    """The part of NC's input that does not depend on h, in NC's own units."""

    X_tr: Tensor  # (B, M, D), embeddings in the case of images
    Y_tr: Tensor  # (B, M, C), ones and zeros in the case of labels
    X_te: Tensor  # (B, N, D)


class SetNetwork(nn.Module):
    """Encoder, cross-attention, decoder: one output row per test point.

    Points are embedded by one shared encoder; attention takes Q from test points, K and V from
    training points, and V also sees the targets.

    Args:
        features: Features of a point.
        targets: Outputs of a target, C.
        outputs: Numbers per test point.
        width: The width d of every layer.
        heads: Attention heads.
        encoder_layers: Linear layers of the encoder, n_enc.
        decoder_layers: Linear layers of the decoder, n_dec; `on_attention` is the first.
        query_skip: Whether the decoder also sees the test point's own embedding.
        pool_first: Whether to average over test points before decoding (appendix C) instead of
            after (Eq. 8); every test point then gets the same output.
        scale_by_width: See `attend`.
        self_layers: Layers of self-attention over the training points, n_self.
        bilinear: Whether each entry of a target acts on V by a matrix of its own, Eq. (9), instead
            of by adding to it.
        bias: Whether V sees the embedding whatever the target, the 1 of Eq. (9); without the
            bilinear layer it always does.
        metric: Whether one projection makes queries and keys, and attention goes by their distance.
        metric_features: From how many of the first features queries and keys are then made, by two
            layers of their own; from the common encoding if 0.
        rounds: How often keys move to the queries that choose them; see `gather`.
        vote: Whether the logarithms of the attention that falls on each target are added to the
            outputs: a test point then takes the label of the training points it is close to, and
            the decoder learns what is to be corrected.
    """

    def __init__(
        self,
        features: int,
        targets: int,
        outputs: int,
        *,
        width: int,
        heads: int,
        encoder_layers: int,
        decoder_layers: int,
        query_skip: bool,
        pool_first: bool,
        scale_by_width: bool,
        self_layers: int = 0,
        bilinear: bool = False,
        bias: bool = True,
        metric: bool = False,
        metric_features: int = 0,
        rounds: int = 0,
        vote: bool = False,
    ) -> None:
        super().__init__()
        if heads < 1 or width % heads:
            raise ValueError(f"width must be a multiple of heads, got width={width}, heads={heads}")
        if decoder_layers < 1:
            raise ValueError(f"decoder_layers must be at least 1, got {decoder_layers}")
        if (rounds or vote) and not metric:
            raise ValueError("metric must be on for rounds and vote, got it off")
        self.heads, self.pool_first, self.scale_by_width = heads, pool_first, scale_by_width
        self.bilinear, self.metric, self.rounds, self.vote = bilinear, metric, rounds, vote
        self.encoder = nn.Sequential(*_hidden(features, width, encoder_layers))
        # Products that share an input are one: K with V, Q with the decoder's view of the point.
        # None has a bias: K's would not change the attention, the others follow from later ones.
        self.train_parts = [0 if metric else width, width if bias or not bilinear else 0]
        self.on_train = _linear(width, sum(self.train_parts))
        self.on_targets = (
            nn.Linear(width, targets * width, bias=False)
            if bilinear
            else nn.Linear(targets, width, bias=False)
        )
        last = decoder_layers == 1  # the decoder's first layer is its last
        decoded = outputs if last else width
        self.metric_layers = nn.Sequential()
        if metric and metric_features:
            first, second = nn.Linear(metric_features, width), nn.Linear(width, width, bias=False)
            self.metric_layers.extend([first, nn.ReLU(inplace=True), second])
        self.metric_features = metric_features
        self.test_parts = [0 if self.metric_layers else width, decoded if query_skip else 0]
        self.on_test = _linear(width, sum(self.test_parts))
        self.on_attention = nn.Linear(width, decoded)
        self.decoder = nn.Sequential()  # the layers after the first
        if not last:
            self.decoder.append(nn.ReLU(inplace=True))
            self.decoder.extend(_hidden(width, width, decoder_layers - 2))
            self.decoder.append(nn.Linear(width, outputs))
        self.self_attention = nn.Sequential(
            *(SelfAttention(width, heads) for _ in range(self_layers))
        )
        if vote:  # at first the votes alone count
            final = self.on_attention if last else self.decoder[-1]
            assert isinstance(final, nn.Linear)
            nn.init.zeros_(final.weight)
            nn.init.zeros_(final.bias)
            if last and query_skip:
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
        elif self.metric:
            K = (e_tr @ self.on_test.weight[: Q.shape[-1]].T).view(B, M, -1)  # (B, M, E)
        if self.metric:
            K = gather(
                Q, K, heads=self.heads, rounds=self.rounds, scale_by_width=self.scale_by_width
            )
        e = self._mix(Q, K, self._values(e_tr, V, T_tr))  # (B, N, [G,] E)
        e = self.on_attention(e.flatten(0, 1))  # (BN, [G,] E), or (BN, [G,] outputs) if last
        if skip.shape[-1]:
            e = e + skip.view(B * N, *[1] * (e.ndim - 2), -1)
        if self.pool_first:
            e = e.view(B, N, *e.shape[1:]).mean(dim=1)  # (B, [G,] E)
        out: Tensor = self.decoder(e)
        out = out.view(B, -1, *out.shape[1:]).expand(-1, N, *[-1] * (out.ndim - 1))
        return out + self._votes(Q, K, T_tr).view_as(out) if self.vote else out

    def place(self, F: Tensor) -> Tensor:
        """Gives where points stand in the space that attention by distance compares them in.

        Args:
            F: Features of points, (..., features).

        Returns:
            Their places, (..., E).
        """
        assert self.metric, "only attention by distance has such a space"
        if self.metric_layers:
            places: Tensor = self.metric_layers(F[..., : self.metric_features])
        else:
            places = self.encoder(F) @ self.on_test.weight[: self.test_parts[0]].T
        return places

    def take_metric(self, other: "SetNetwork") -> None:
        """Takes over where another network places points, if both have such layers of one size.

        Args:
            other: The network, whose places come from its common encoding; stays as it is.
        """
        if not self.metric_layers or not other.metric or other.metric_layers:
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
        if not self.bilinear:
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
        """Gives the logarithm of the attention on each target, all heads multiplied, (B, N, C)."""
        T = T_tr.flatten(2)  # (B, M, C)
        falls = self._attend(Q, K, T.repeat(1, 1, self.heads))
        falls = falls.view(*Q.shape[:2], self.heads, -1)  # (B, N, heads, C)
        return falls.clamp(min=1e-7).log().sum(dim=2)

    def _attend(self, Q: Tensor, K: Tensor, V: Tensor) -> Tensor:
        return attend(
            Q,
            K,
            V,
            heads=self.heads,
            scale_by_width=self.scale_by_width,
            by_distance=self.metric,
        )


class _Nothing(nn.Module):
    """A linear layer without outputs."""

    weight = torch.empty(0)

    def forward(self, e: Tensor) -> Tensor:
        return e[..., :0]


def _linear(features: int, outputs: int) -> nn.Linear | _Nothing:
    return nn.Linear(features, outputs, bias=False) if outputs else _Nothing()


def _hidden(features: int, width: int, layers: int) -> list[nn.Module]:
    """Makes linear layers, each with a ReLU that writes over its input: memory is what costs."""
    pairs = pairwise([features, *[width] * layers])
    return [layer for pair in pairs for layer in (nn.Linear(*pair), nn.ReLU(inplace=True))]


class DirectHead(nn.Module):
    """The paper's head: the network sees (x, h(x)) and answers with a loss or a gap per test point.

    Args:
        network: Takes the features of x and of h(x), gives one output.
        symmetric: Whether the network is asked about each class by itself, as if it were the only
            one, and its answers are added up: no class is then special, and there can be any number
            of them.
    """

    def __init__(self, network: SetNetwork, *, symmetric: bool = False) -> None:
        super().__init__()
        self.network, self.symmetric = network, symmetric

    def forward(self, sets: Sets, T_tr: Tensor, H_tr: Tensor, H_te: Tensor) -> Tensor:
        """Answers for each test point.

        Args:
            sets: What does not depend on h; its targets are not used.
            T_tr: The targets, with the training losses if NC is to see them, (B, M, [C,] targets).
            H_tr: What NC sees of h(x) at training points, (B, M, [C,] features).
            H_te: The same at test points, (B, N, [C,] features).

        Returns:
            One number per test point, (B, N).
        """
        if not self.symmetric:
            F_tr = torch.cat([sets.X_tr, H_tr], dim=-1)  # (B, M, D + features)
            F_te = torch.cat([sets.X_te, H_te], dim=-1)  # (B, N, D + features)
            answers: Tensor = self.network(F_tr, T_tr, F_te).squeeze(-1)  # (B, N)
            return answers
        C = H_tr.shape[2]
        F_tr = torch.cat([_for_each(sets.X_tr, C), _classes_first(H_tr)], dim=-1)
        F_te = torch.cat([_for_each(sets.X_te, C), _classes_first(H_te)], dim=-1)
        answers = self.network(F_tr, _classes_first(T_tr), F_te).squeeze(-1)  # (BC, N)
        return answers.view(-1, C, answers.shape[-1]).sum(dim=1)


def _for_each(X: Tensor, classes: int) -> Tensor:
    """Repeats sets (B, M, D) for each class, (BC, M, D)."""
    return X.unsqueeze(1).expand(-1, classes, -1, -1).flatten(0, 1)


def _classes_first(T: Tensor) -> Tensor:
    """Makes (BC, M, features) of (B, M, C, features)."""
    return T.transpose(1, 2).flatten(0, 1)


class PosteriorHead(nn.Module):
    """Our head: the network sees x alone and answers with a belief about y per test point.

    Args:
        network: Takes D features; gives 2C outputs for real targets, C for labels, or one if
            `symmetric`.
        labels: Whether targets are labels.
        symmetric: Whether the network is asked about each class by itself: no class is then
            special, and there can be any number of them.
    """

    def __init__(
        self, network: SetNetwork, *, labels: bool = False, symmetric: bool = False
    ) -> None:
        super().__init__()
        self.network, self.labels, self.symmetric = network, labels, symmetric

    def forward(self, sets: Sets) -> Belief:
        """Gives p(y | x, S) at the test points, in NC's units."""
        if self.symmetric:
            answers = self.network(sets.X_tr, sets.Y_tr.unsqueeze(-1), sets.X_te).squeeze(-1)
        else:
            answers = self.network(sets.X_tr, sets.Y_tr, sets.X_te)
        if self.labels:
            return Categorical(answers)
        mean, spread = answers.chunk(2, dim=-1)  # (B, N, C)
        # Start certain rather than vague: a large variance hides the error of the mean from the
        # gap.
        return Gaussian(mean, softplus(spread - 3.0))
