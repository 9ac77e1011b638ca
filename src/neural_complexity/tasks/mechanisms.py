"""How synthetic tables come about: causal networks, trees, smooth functions and mixtures.

A mechanism draws B tables of P rows at once: features (B, P, D), and scores (B, P, S) that depend
on them, of which the targets are made. Scores have mean 0 and variance 1 over the rows of a table.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = ["MECHANISMS", "Draws", "Mechanism", "standardized"]

ROOTS, HIDDEN = 8, 20  # causes, at most, and nodes of a layer, of a causal network
TREES, DEPTH = 32, 4
WAVES = 256  # random features of a Gaussian process
CLUSTERS = 16


@dataclass(frozen=True)
class Draws:
    """Random numbers of a generator, on its device."""

    generator: torch.Generator

    def uniform(self, *size: int, low: float = 0.0, high: float = 1.0) -> Tensor:
        """Draws numbers that are uniform from `low` to `high`."""
        device = self.generator.device
        return low + (high - low) * torch.rand(size, generator=self.generator, device=device)

    def spread(self, low: float, high: float, *size: int) -> Tensor:
        """Draws positive numbers whose logarithms are uniform."""
        return self.uniform(*size, low=math.log(low), high=math.log(high)).exp()

    def normal(self, *size: int) -> Tensor:
        """Draws standard normal numbers."""
        return torch.randn(size, generator=self.generator, device=self.generator.device)

    def index(self, below: int, *size: int) -> Tensor:
        """Draws whole numbers from 0 to `below` - 1."""
        return (self.uniform(*size) * below).long().clamp(max=below - 1)

    def happens(self, rate: float | Tensor, *size: int) -> Tensor:
        """Draws what happens at a rate."""
        return self.uniform(*size) < rate

    def gumbel(self, *size: int) -> Tensor:
        """Draws Gumbel noise: the largest of log(p) plus it is drawn with weights p."""
        return -(-self.uniform(*size, low=1e-7).log()).clamp(min=1e-7).log()

    def order(self, *size: int) -> Tensor:
        """Draws permutations along the last axis."""
        return self.uniform(*size).argsort(dim=-1)


Mechanism = Callable[[Draws, int, int, int, int], tuple[Tensor, Tensor]]


def standardized(X: Tensor) -> Tensor:
    """Returns columns of tables (B, P, D) with mean 0 and variance 1; constant ones are 0."""
    centred = X - X.mean(dim=1, keepdim=True)
    return centred / centred.square().mean(dim=1, keepdim=True).sqrt().clamp(min=1e-6)


def _inputs(draws: Draws, B: int, P: int, D: int) -> Tensor:
    """Draws features, (B, P, D): normal, uniform, heavy-tailed or in groups, and correlated."""
    normal, uniform = draws.normal(B, P, D), draws.uniform(B, P, D, low=-1.7, high=1.7)
    heavy = draws.normal(B, P, D) * draws.spread(0.3, 3.0, B, P, D)
    centres = 2 * draws.normal(B, CLUSTERS, D)
    groups = (CLUSTERS ** draws.uniform(B, 1)).ceil()  # the fewer, the likelier
    group = (draws.uniform(B, P) * groups).long().clamp(max=CLUSTERS - 1)
    grouped = centres.gather(1, group.unsqueeze(-1).expand(-1, -1, D)) + normal
    kinds = torch.stack([normal, uniform, heavy, grouped])
    common, own = draws.index(4, B, 1), draws.index(4, B, D)
    chosen = torch.where(draws.happens(0.7, B, 1), common, own)
    X = standardized(kinds.gather(0, chosen[None, :, None].expand(1, -1, P, -1)).squeeze(0))
    mix = draws.normal(B, D, D) * draws.happens(draws.uniform(B, 1, 1), B, D, D) / math.sqrt(D)
    return standardized(X + draws.spread(0.01, 3.0, B, 1, 1) * (X @ mix))


def _relevance(draws: Draws, B: int, D: int) -> Tensor:
    """Draws how much each feature matters, (B, D): few do in some tables, all in others."""
    weight = (draws.spread(0.1, 3.0, B, 1) * draws.normal(B, D)).exp()
    weight = weight * draws.happens(draws.uniform(B, 1, low=0.2, high=1.5), B, D) + 1e-4
    return weight / weight.amax(dim=-1, keepdim=True)


def causal_network(draws: Draws, B: int, P: int, D: int, S: int) -> tuple[Tensor, Tensor]:
    """Draws nodes of a random sparse network with noise; features and scores are some of them.

    So features may be causes of the target, its effects, or have causes in common with it.
    """
    # No more causes than features, or what is not seen would decide everything.
    h = _inputs(draws, B, P, int(draws.index(min(ROOTS, D), 1)) + 1)
    nodes = [h]
    noise = draws.spread(0.001, 0.3, B, 1, 1)
    density = draws.spread(0.1, 1.0, B, 1, 1)
    allowed = draws.index(len(ACTIVATIONS), B, 3)  # the kinds that a table has
    for _ in range(int(draws.index(3, 1)) + 2):
        W = draws.normal(B, h.shape[-1], HIDDEN) * draws.happens(density, B, h.shape[-1], HIDDEN)
        at = standardized(h @ W) * draws.spread(0.3, 3.0, B, 1, HIDDEN) + draws.normal(B, 1, HIDDEN)
        kind = allowed.gather(1, draws.index(3, B, HIDDEN))  # (B, HIDDEN)
        kinds = torch.stack([act(at) for act in ACTIVATIONS])
        h = kinds.gather(0, kind[None, :, None].expand(1, -1, P, -1)).squeeze(0)
        h = standardized(standardized(h) + noise * draws.normal(B, P, HIDDEN))
        nodes.append(h)
    every = torch.cat(nodes, dim=-1)  # (B, P, nodes)
    # Scores prefer late nodes in some tables, features early ones.
    place = torch.linspace(-1, 1, every.shape[-1], device=every.device)
    late = draws.uniform(B, 1, low=0.0, high=6.0)
    scored = (draws.gumbel(B, len(place)) + late * place).topk(S).indices
    free = (draws.gumbel(B, len(place)) - late * place).scatter(1, scored, -math.inf)
    seen = free.topk(min(D, len(place) - S)).indices
    X, scores = (every.gather(2, i.unsqueeze(1).expand(-1, P, -1)) for i in (seen, scored))
    if X.shape[-1] < D:
        X = torch.cat([X, _inputs(draws, B, P, D - X.shape[-1])], dim=-1)
    return X, scores


ACTIVATIONS: tuple[Callable[[Tensor], Tensor], ...] = (
    lambda x: x,
    torch.tanh,
    torch.relu,
    torch.abs,
    torch.square,
    torch.sin,
    torch.sign,
    lambda x: (-x.square()).exp(),
    lambda x: x.floor(),
)


def trees(draws: Draws, B: int, P: int, D: int, S: int) -> tuple[Tensor, Tensor]:
    """Draws sums of decision trees that ask the same question at every node of a depth."""
    X = _inputs(draws, B, P, D)
    questions = TREES * DEPTH
    asked = _relevance(draws, B, D).multinomial(
        questions, replacement=True, generator=draws.generator
    )
    at = draws.index(P, B, 1, questions)  # thresholds are values of rows
    values = X.gather(2, asked.unsqueeze(1).expand(-1, P, -1))  # (B, P, questions)
    above = (values > values.gather(1, at)).view(B, P, TREES, DEPTH)
    # Trees of one table are of one depth: questions beyond it are not asked.
    depth = draws.index(DEPTH, B, 1, 1, 1) + 1
    above = above & (torch.arange(DEPTH, device=X.device) < depth)
    leaf = (above.long() << torch.arange(DEPTH, device=X.device)).sum(dim=-1)  # (B, P, TREES)
    size = torch.exp(-torch.arange(TREES, device=X.device) / draws.spread(0.3, 6.0, B, 1))
    leaves = draws.normal(B, TREES, 2**DEPTH, S) * size[..., None, None]
    index = leaf + 2**DEPTH * torch.arange(TREES, device=X.device)
    flat = leaves.flatten(1, 2)  # (B, TREES * leaves, S)
    scores = flat.new_zeros(B, P, S)
    for tree in range(TREES):  # bounds memory: (B, P, TREES, S) would be large
        scores += flat.gather(1, index[..., tree, None].expand(-1, -1, S))
    return X, standardized(scores)


def smooth(draws: Draws, B: int, P: int, D: int, S: int) -> tuple[Tensor, Tensor]:
    """Draws functions of a Gaussian process by random features, plus linear ones."""
    X = _inputs(draws, B, P, D)
    relevance = _relevance(draws, B, D)
    norm = relevance.square().sum(dim=-1, keepdim=True).sqrt()
    w = (
        draws.normal(B, D, WAVES)
        * (relevance / norm).unsqueeze(-1)
        * draws.spread(0.1, 3.0, B, 1, 1)
    )
    rough = draws.happens(0.3, B, 1, 1)  # heavy-tailed frequencies
    w = torch.where(rough, w * draws.spread(0.1, 10.0, B, 1, WAVES), w)
    waves = (X @ w + draws.uniform(B, 1, WAVES, high=2 * math.pi)).cos()
    bent = standardized(waves @ draws.normal(B, WAVES, S))
    straight = standardized(X @ (relevance.unsqueeze(-1) * draws.normal(B, D, S)))
    share = draws.uniform(B, 1, 1, low=-0.3, high=1.3).clamp(0, 1)
    return X, standardized(share.sqrt() * bent + (1 - share).sqrt() * straight)


def mixture(draws: Draws, B: int, P: int, D: int, S: int) -> tuple[Tensor, Tensor]:
    """Draws rows of groups, each with scores of its own that are linear in the features."""
    groups = draws.uniform(B, 1, low=2, high=CLUSTERS + 0.99).long()
    size = torch.where(torch.arange(CLUSTERS, device=groups.device) < groups, 0.0, -math.inf)
    size = size + draws.spread(0.1, 1.0, B, 1) * draws.normal(B, CLUSTERS)
    group = (size.unsqueeze(1) + draws.gumbel(B, P, CLUSTERS)).argmax(dim=-1)  # (B, P)
    relevance = _relevance(draws, B, D)

    def of_group(each: Tensor) -> Tensor:
        return each.gather(1, group.unsqueeze(-1).expand(-1, -1, each.shape[-1]))

    apart = draws.spread(0.5, 10.0, B, 1, 1) * relevance.unsqueeze(1)
    spread = draws.spread(0.5, 2.0, B, CLUSTERS, D)
    X = of_group(apart * draws.normal(B, CLUSTERS, D)) + of_group(spread) * draws.normal(B, P, D)
    X = standardized(X)
    slope = draws.spread(0.01, 1.0, B, 1) * draws.normal(B, CLUSTERS * D * S).abs().clamp(max=3)
    slope = slope.view(B, CLUSTERS, D, S) * relevance[:, None, :, None] * draws.normal(B, 1, D, S)
    each = torch.einsum("bpd,bkds->bpks", X, slope)
    chosen = each.gather(2, group[..., None, None].expand(-1, -1, 1, S)).squeeze(2)
    return X, standardized(of_group(draws.normal(B, CLUSTERS, S)) + chosen)


MECHANISMS: dict[str, Mechanism] = {
    "causal network": causal_network,
    "trees": trees,
    "smooth": smooth,
    "mixture": mixture,
}
