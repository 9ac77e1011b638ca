"""B copies of any module run as one, and losses around one module (Li et al., 2018)."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.dropout import _DropoutNd
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from neural_complexity.points import values

__all__ = ["BatchedLearner", "Measure", "PlacedLearner", "State", "filter_normalised", "join"]
__all__ += ["stack", "surface"]

aten = torch.ops.aten

# Fills that treat every element alike: done on the stacked tensor, they give each of the B copies
# its own draw from the distribution that the module's own initialisation draws from.
RANDOM_FILLS = {aten.uniform_.default, aten.normal_.default}
FILLS = RANDOM_FILLS | {aten.fill_.Scalar, aten.zero_.default, aten.clamp_.default}
FILLS |= {aten.mul_.Scalar, aten.mul_.Tensor, aten.add_.Scalar, aten.add_.Tensor}
FILLS |= {aten.div_.Scalar, aten.div_.Tensor, aten.erfinv_.default}
# Write nothing, or make the storage whose later fills are recorded.
HARMLESS = {aten.empty.memory_format, aten.detach.default, aten.alias.default}

# The modules of PyTorch that behave differently in training and evaluation.
ATTENTIVE = (nn.MultiheadAttention, nn.TransformerEncoderLayer, nn.TransformerDecoderLayer)
MODAL = (_DropoutNd, _NormBase, nn.RReLU, nn.RNNBase, *ATTENTIVE)
# Where modules live whose own code knows no modes; what they are made of is looked at by itself.
PLAIN = ("torch.nn.", "neural_complexity.learners.networks")

State = dict[str, Tensor]  # parameters and buffers by the template's names
Fill = tuple[Callable[..., Tensor], tuple[Any, ...], dict[str, Any]]


class _RecordFills(TorchDispatchMode):
    """Records which fills made each tensor while a module is built, by storage."""

    def __init__(self) -> None:
        super().__init__()
        # A tensor, kept alive so that no other takes its address; its fills; what they made of it.
        self.histories: dict[int, tuple[Tensor, tuple[Fill, ...], Tensor]] = {}
        self.pure = True  # until randomness is drawn in another way: what is the same may differ

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        if func in FILLS and all(isinstance(a, int | float) for a in args[1:]):
            history = self.histories.get(_address(args[0]))
            if history is not None and history[0].shape == args[0].shape:
                fills = (*history[1], (func, tuple(args[1:]), kwargs))
                self.histories[_address(args[0])] = (history[0], fills, args[0].detach().clone())
                return result
        if torch.Tag.nondeterministic_seeded in func.tags:
            self.pure = False
        if func is aten.empty.memory_format:
            self.histories[_address(result)] = (result, (), result)
        elif func not in HARMLESS:
            # Anything else may have written in a way that a fill cannot repeat.
            for leaf in tree_leaves((args, kwargs, result)):
                if isinstance(leaf, Tensor):
                    self.histories.pop(_address(leaf), None)
        return result

    def fills(self, value: Tensor) -> tuple[Fill, ...]:
        """Returns the fills that made a tensor, none if it is not what they made."""
        _, fills, made = self.histories.get(_address(value), (value, (), value))
        return fills if torch.equal(made, value) else ()


def _address(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


class BatchedLearner(nn.Module):
    """B learners of one architecture; learner b sees row b of its inputs and nothing else."""

    # They stay independent under optimizers that work element by element, if the objective is
    # summed over learners.
    template: nn.Module

    def __init__(self, template: nn.Module, state: State) -> None:
        super().__init__()
        trained = {name for name, p in template.named_parameters() if p.requires_grad}
        # Under names of our own: those of parameters hold dots, which modules refuse.
        self._names = tuple(state)
        for i, (name, own) in enumerate(state.items()):
            if name in trained:
                # As gradients of more than one learner come: transposed in memory. Otherwise each
                # update would walk two layouts at once, which takes several times as long.
                laid = own.mT.contiguous().mT if own.ndim == 3 and len(own) > 1 else own
                self.register_parameter(f"p{i}", nn.Parameter(laid))
            else:
                self.register_buffer(f"p{i}", own)
        # Hidden from the module tree, so that `parameters()` gives the stacked ones alone.
        self.__dict__["template"] = template

    def state(self) -> State:
        """Returns the stacked parameters and buffers under the template's names."""
        return {name: getattr(self, f"p{i}") for i, name in enumerate(self._names)}

    def train(self, mode: bool = True) -> "BatchedLearner":
        """Switches noise layers and batch statistics on or off, as for any module."""
        super().train(mode)
        self.template.train(mode)
        return self

    @property
    def has_modes(self) -> bool:
        """Whether training and evaluation may give different predictions."""
        return any(  # a module that is neither PyTorch's own nor ours may do anything
            isinstance(module, MODAL) or not type(module).__module__.startswith(PLAIN)
            for module in self.template.modules()
        )

    def one(self, b: int) -> nn.Module:
        """Returns learner b as a module of its own, (points, D) to (points, C); a copy."""
        module, state = deepcopy(self.template), self.state()
        for name, tensor in [*module.named_parameters(), *module.named_buffers()]:
            tensor.data = state[name][b].detach().clone(memory_format=torch.contiguous_format)
        return module

    def placed(self) -> "PlacedLearner":
        """Returns the learners as values that gradients can flow through."""
        trained = (name for name, p in self.template.named_parameters() if p.requires_grad)
        return PlacedLearner(self.template, self.state(), tuple(trained))

    def forward(self, X: Tensor) -> Tensor:
        """Predicts with each learner on its own inputs, (B, points, D), as (B, points, C)."""
        return PlacedLearner(self.template, self.state(), ())(X)


@dataclass(frozen=True)
class PlacedLearner:
    """B learners at given parameters, which need not be leaves: for gradients through training."""

    template: nn.Module
    values: State  # each with a leading axis of length B
    trained: tuple[str, ...]  # the names of what training changes

    def __call__(self, X: Tensor) -> Tensor:
        """Predicts with each learner on its own inputs, (B, points, D), as (B, points, C)."""
        X = values(X)
        one: Callable[[State, Tensor], Tensor] = partial(functional_call, self.template)
        if len(X) == 1:  # faster by itself, and then it may be any module
            x = X[0]
            if x.ndim == 4 and x.shape[1] > 1:  # convolutions are faster with channels last
                x = x.contiguous(memory_format=torch.channels_last)
            # Not `t[0]`, whose gradient is copied into a new tensor.
            return one({name: t.squeeze(0) for name, t in self.values.items()}, x).unsqueeze(0)
        predictions: Tensor = vmap(one, randomness="different")(self.values, X)
        return predictions

    def state(self) -> State:
        """Returns parameters and buffers under the template's names."""
        return self.values

    def parameters(self) -> Iterator[Tensor]:
        """Returns what training changes."""
        return (self.values[name] for name in self.trained)

    def moved(self, parameters: Iterable[Tensor]) -> "PlacedLearner":
        """Returns the same learners with other parameters, in the order of `parameters`."""
        new = dict(zip(self.trained, parameters, strict=True))
        return replace(self, values={**self.values, **new})


Measure = Callable[[PlacedLearner], dict[str, Tensor]]  # of K learners: named values, (K,) each


def stack(make: Callable[[], nn.Module], batch: int, generator: torch.Generator) -> BatchedLearner:
    """Returns B independent learners, with parameters drawn as the module itself would draw."""
    # Building B modules in Python is slow. So two are built under a recorder, and the elementwise
    # fills that made each parameter of both are repeated once on the stacked tensor.
    if batch < 1:
        raise ValueError(f"batch must be at least 1, got {batch}")
    first, second = _RecordFills(), _RecordFills()
    with torch.random.fork_rng(devices=[]):
        with first:
            template = make()
        if not isinstance(template, nn.Module):
            raise TypeError(f"make must build a torch.nn.Module, got {type(template).__name__}")
        with second:
            twin = _state(make())
    device, stacked = generator.device, State()
    for name, value in _state(template).items():
        fills = first.fills(value)
        if fills and fills == second.fills(twin[name]):
            stacked[name] = value.new_empty(batch, *value.shape, device=device)
            for func, args, kwargs in fills:
                source = {"generator": generator} if func in RANDOM_FILLS else {}
                func(stacked[name], *args, **{**kwargs, **source})
        elif first.pure and torch.equal(value, twin[name]):  # drawn from nothing: equal in all
            stacked[name] = value.to(device).expand(batch, *value.shape).clone()
        else:  # one by one; slow, and right for any initialisation
            seeds = torch.randint(2**62, (batch,), generator=generator, device=device).tolist()
            states = []
            with torch.random.fork_rng(devices=[]):
                for seed in seeds:
                    torch.default_generator.manual_seed(seed)
                    states.append(_state(make()))
            own = {n: torch.stack([state[n] for state in states]).to(device) for n in states[0]}
            return BatchedLearner(template, own)
    return BatchedLearner(template, stacked)


def join(modules: Sequence[nn.Module]) -> BatchedLearner:
    """Returns copies of modules of one architecture as B learners, in evaluation mode."""
    states = [_state(module) for module in modules]
    stacked = {name: torch.stack([state[name] for state in states]) for name in states[0]}
    return BatchedLearner(deepcopy(modules[0]), stacked).eval()


def _state(module: nn.Module) -> State:
    return {n: t.detach() for n, t in [*module.named_parameters(), *module.named_buffers()]}


def filter_normalised(parameters: State, generator: torch.Generator) -> State:
    """Draws a Gaussian direction in which every filter moves as far as it is long."""
    # Networks with ReLUs do the same when one layer is doubled and the next is halved, so a step of
    # fixed length means nothing by itself; relative to each filter, a slice along the first axis,
    # it does. Biases and the scales of normalisation have no filters and stay, as in Li et al.
    directions = {name: torch.zeros_like(value) for name, value in parameters.items()}
    for name, p in parameters.items():
        if p.ndim > 1:
            d = torch.randn(p.shape, generator=generator, dtype=p.dtype, device=generator.device)
            d, rest = d.to(p.device), tuple(range(1, p.ndim))
            scale, drawn = (torch.linalg.vector_norm(t, dim=rest, keepdim=True) for t in (p, d))
            directions[name] = d * (scale / drawn)
    return directions


@torch.no_grad()
def surface(
    h: nn.Module,
    measure: Measure,
    *,
    generator: torch.Generator,
    size: int = 25,
    radius: float = 1.0,
    chunk: int = 64,
) -> State:
    """Measures any trained module over a plane of two random filter-normalised directions.

    `measure` sees K copies of the module, `chunk` at most, at K points and in evaluation mode.
    The plane theta + alpha d1 + beta d2 reaches `radius` lengths of the filters, with `size` points
    each way; of an odd number the module is in the centre. Returned are the values by name, (size,
    size), alpha down and beta across, and alpha and beta themselves, (size,).
    """
    for name, number, least in (("size", size, 2), ("chunk", chunk, 1)):
        if number < least:
            raise ValueError(f"{name} must be at least {least}, got {number}")
    if not radius > 0:
        raise ValueError(f"radius must be positive, got {radius}")
    template = deepcopy(h).eval()  # a mixture of modes could not be put back otherwise
    theta = {name: p.detach() for name, p in template.named_parameters()}
    if all(value.ndim < 2 for value in theta.values()):
        raise ValueError("h must have a parameter with filters, got none with two axes or more")
    directions = [filter_normalised(theta, generator) for _ in range(2)]
    # Not linspace: the centre is to be zero exactly.
    steps = (torch.arange(size) - (size - 1) / 2) * (2 * radius / (size - 1))  # (size,)
    found: dict[str, list[Tensor]] = {}
    for where in torch.cartesian_prod(steps, steps).split(chunk):  # (K, 2)
        K = len(where)
        state = {n: t.expand(K, *t.shape) for n, t in _state(template).items()}
        for name, value in theta.items():
            for direction, step in zip(directions, where.to(value).unbind(dim=1), strict=True):
                along = step.view(K, *[1] * value.ndim) * direction[name]  # (K, ...)
                state[name] = state[name] + along
        for name, value in measure(PlacedLearner(template, state, tuple(theta))).items():
            if value.shape != (K,):
                got = f"shape {tuple(value.shape)} for {K} copies as {name}"
                raise ValueError(f"measure must return one value per copy, got {got}")
            found.setdefault(name, []).append(value)
    planes = {name: torch.cat(parts).unflatten(0, (size, size)) for name, parts in found.items()}
    return {"alpha": steps, "beta": steps.clone(), **planes}
