"""The set network of section 3.3, and the two heads that ask it different questions."""

from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn.functional import softplus

from neural_complexity.losses import Gaussian
from neural_complexity.model.attention import attend

__all__ = ["DirectHead", "PosteriorHead", "SetNetwork", "Sets"]


@dataclass(frozen=True)
class Sets:
    """The part of NC's input that does not depend on h, in NC's own units."""

    X_tr: Tensor  # (B, M, D)
    Y_tr: Tensor  # (B, M, C)
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
    ) -> None:
        super().__init__()
        if heads < 1 or width % heads:
            raise ValueError(f"width must be a multiple of heads, got width={width}, heads={heads}")
        if decoder_layers < 1:
            raise ValueError(f"decoder_layers must be at least 1, got {decoder_layers}")
        self.heads, self.pool_first, self.scale_by_width = heads, pool_first, scale_by_width
        self.encoder = nn.Sequential(*_hidden(features, width, encoder_layers))
        # Products that share an input are one: K with V, Q with the decoder's view of the point.
        # None has a bias: K's would not change the attention, the others follow from later ones.
        self.on_train = nn.Linear(width, 2 * width, bias=False)
        self.on_targets = nn.Linear(targets, width, bias=False)
        last = decoder_layers == 1  # the decoder's first layer is its last
        decoded = outputs if last else width
        self.test_parts = [width, decoded] if query_skip else [width]
        self.on_test = nn.Linear(width, sum(self.test_parts), bias=False)
        self.on_attention = nn.Linear(width, decoded)
        self.decoder = nn.Sequential()  # the layers after the first
        if not last:
            self.decoder.append(nn.ReLU(inplace=True))
            self.decoder.extend(_hidden(width, width, decoder_layers - 2))
            self.decoder.append(nn.Linear(width, outputs))

    def forward(self, F_tr: Tensor, Y_tr: Tensor, F_te: Tensor) -> Tensor:
        """Answers for each test point.

        Args:
            F_tr: Features of the training points, (B, M, features).
            Y_tr: Training targets, (B, M, targets).
            F_te: Features of the test points, (B, N, features).

        Returns:
            One row per test point, (B, N, outputs).
        """
        (B, M, _), N = F_tr.shape, F_te.shape[1]
        # Layers see points one after another, (BM, ...): over three axes a ReLU would write over a
        # view, which autograd pays for with copies. A product for both sets would have to be cut.
        K, V = self.on_train(self.encoder(F_tr.flatten(0, 1))).view(B, M, -1).chunk(2, dim=-1)
        V = V + self.on_targets(Y_tr)  # (B, M, E)
        Q, *skip = self.on_test(self.encoder(F_te.flatten(0, 1))).split(self.test_parts, dim=-1)
        Q = Q.view(B, N, -1)  # (B, N, E)
        e_att = attend(Q, K, V, heads=self.heads, scale_by_width=self.scale_by_width)
        e = self.on_attention(e_att.flatten(0, 1))  # (BN, E), or (BN, outputs) if last
        for own in skip:
            e += own
        if self.pool_first:
            e = e.view(B, N, -1).mean(dim=1)  # (B, E)
        out: Tensor = self.decoder(e)
        return out.view(B, -1, out.shape[-1]).expand(-1, N, -1)


def _hidden(features: int, width: int, layers: int) -> list[nn.Module]:
    """Makes linear layers, each with a ReLU that writes over its input: memory is what costs."""
    pairs = pairwise([features, *[width] * layers])
    return [layer for pair in pairs for layer in (nn.Linear(*pair), nn.ReLU(inplace=True))]


class DirectHead(nn.Module):
    """The paper's head: the network sees (x, h(x)) and answers with a loss or a gap per test point.

    Args:
        network: Takes D + C features, gives one output.
    """

    def __init__(self, network: SetNetwork) -> None:
        super().__init__()
        self.network = network

    def forward(self, sets: Sets, H_tr: Tensor, H_te: Tensor) -> Tensor:
        """Answers for predictions H_tr, (B, M, C), and H_te, (B, N, C), as (B, N)."""
        F_tr = torch.cat([sets.X_tr, H_tr], dim=-1)  # (B, M, D + C)
        F_te = torch.cat([sets.X_te, H_te], dim=-1)  # (B, N, D + C)
        return self.network(F_tr, sets.Y_tr, F_te).squeeze(-1)  # type: ignore[no-any-return]


class PosteriorHead(nn.Module):
    """Our head: the network sees x alone and answers with a belief about y per test point.

    Args:
        network: Takes D features, gives 2C outputs.
    """

    def __init__(self, network: SetNetwork) -> None:
        super().__init__()
        self.network = network

    def forward(self, sets: Sets) -> Gaussian:
        """Gives p(y | x, S) at the test points, in NC's units."""
        mean, spread = self.network(sets.X_tr, sets.Y_tr, sets.X_te).chunk(2, dim=-1)  # (B, N, C)
        # Start certain rather than vague: a large variance hides the error of the mean from the
        # gap.
        return Gaussian(mean, softplus(spread - 3.0))
