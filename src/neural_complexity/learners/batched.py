"""B copies of any module, with parameters of their own, run as one."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.dropout import _DropoutNd
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from neural_complexity.points import values

__all__ = ["BatchedLearner", "PlacedLearner", "stack"]

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
MODAL = (
    _DropoutNd,
    _NormBase,
    nn.RReLU,
    nn.RNNBase,
    nn.MultiheadAttention,
    nn.TransformerEncoderLayer,
    nn.TransformerDecoderLayer,
)

# Where modules live whose own code knows no modes; what they are made of is looked at by itself.
PLAIN = ("torch.nn.", "neural_complexity.learners.networks")

Fill = tuple[Callable[..., Tensor], tuple[Any, ...], dict[str, Any]]


@dataclass(frozen=True)
class _History:
    """A tensor, the fills that made it, and what it was after the last of them."""

    tensor: Tensor  # kept alive, so that no other tensor takes its address
    fills: tuple[Fill, ...]
    value: Tensor


class _RecordFills(TorchDispatchMode):
    """Records which fills made each tensor while a module is built, by storage."""

    def __init__(self) -> None:
        super().__init__()
        self.histories: dict[int, _History] = {}
        # False once randomness was drawn in another way: what is the same twice may differ then.
        self.pure = True

    def __torch_dispatch__(
        self,
        func: Any,
        types: Iterable[type],
        args: Sequence[Any] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        if func in FILLS and all(isinstance(a, int | float) for a in args[1:]):
            history = self.histories.get(_address(args[0]))
            if history is not None and history.tensor.shape == args[0].shape:
                fills = (*history.fills, (func, tuple(args[1:]), kwargs))
                value = args[0].detach().clone()
                self.histories[_address(args[0])] = _History(history.tensor, fills, value)
                return result
        if torch.Tag.nondeterministic_seeded in func.tags:
            self.pure = False
        if func is aten.empty.memory_format:
            self.histories[_address(result)] = _History(result, (), result)
        elif func not in HARMLESS:
            # Anything else may have written in a way that a fill cannot repeat.
            for leaf in tree_leaves((args, kwargs, result)):
                if isinstance(leaf, Tensor):
                    self.histories.pop(_address(leaf), None)
        return result

    def fills(self, value: Tensor) -> tuple[Fill, ...]:
        """Returns the fills that made a tensor, none if it is not what they made."""
        history = self.histories.get(_address(value))
        if history is None or not torch.equal(history.value, value):
            return ()
        return history.fills


def _address(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _replay(value: Tensor, fills: Iterable[Fill], batch: int, generator: torch.Generator) -> Tensor:
    """Repeats the fills that made `value` on B copies at once."""
    stacked = torch.empty(batch, *value.shape, dtype=value.dtype, device=generator.device)
    for func, args, kwargs in fills:
        source = {"generator": generator} if func in RANDOM_FILLS else {}
        func(stacked, *args, **{**kwargs, **source})
    return stacked


def _one_by_one(
    make: Callable[[], nn.Module], batch: int, generator: torch.Generator
) -> dict[str, Tensor]:
    """Builds B modules and stacks their states; slow, and right for any initialisation."""
    seeds = torch.randint(2**62, (batch,), generator=generator, device=generator.device).tolist()
    states: list[dict[str, Tensor]] = []
    with torch.random.fork_rng(devices=[]):
        for seed in seeds:
            torch.default_generator.manual_seed(seed)
            states.append(_state(make()))
    return {
        name: torch.stack([state[name] for state in states]).to(generator.device)
        for name in states[0]
    }


def _state(module: nn.Module) -> dict[str, Tensor]:
    return {n: t.detach() for n, t in [*module.named_parameters(), *module.named_buffers()]}


def stack(
    make: Callable[[], nn.Module], batch: int, generator: torch.Generator
) -> "BatchedLearner":
    """Returns B independent learners, with parameters drawn as the module itself would draw them.

    Building B modules in Python costs far more than training them. So two are built under a
    recorder, and the elementwise fills that made each parameter of both (`uniform_`, `normal_`,
    `zeros_`, ...) are repeated once on the stacked tensor. A module with any other initialisation
    (orthogonal, say) is built B times instead.

    Args:
        make: Builds one freshly initialised module; called on the CPU.
        batch: The number of learners, B.
        generator: The source of randomness; parameters live on its device.
    """
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
    stacked: dict[str, Tensor] = {}
    for name, value in _state(template).items():
        fills = first.fills(value)
        if fills and fills == second.fills(twin[name]):
            stacked[name] = _replay(value, fills, batch, generator)
        elif first.pure and torch.equal(value, twin[name]):  # drawn from nothing: equal in all
            stacked[name] = value.to(generator.device).expand(batch, *value.shape).clone()
        else:
            return BatchedLearner(template, _one_by_one(make, batch, generator))
    return BatchedLearner(template, stacked)


def _as_gradient(stacked: Tensor) -> Tensor:
    """Lays out stacked matrices, (B, out, in), as their gradients come: transposed in memory.

    Otherwise each update would walk two layouts at once, which takes several times as long.
    """
    # A single learner runs without vmap, and its gradients come as they do for any module.
    return stacked.mT.contiguous().mT if stacked.ndim == 3 and len(stacked) > 1 else stacked


class BatchedLearner(nn.Module):
    """B learners of one architecture; learner b sees row b of its inputs and nothing else.

    Stacked parameters keep the learners independent under any optimizer that works element by
    element (SGD, Adam and their kin), as long as the objective is summed over learners.

    Args:
        template: A module whose forward pass every learner runs.
        state: Its parameters and buffers by name, each with a leading axis of length B.
    """

    def __init__(self, template: nn.Module, state: dict[str, Tensor]) -> None:
        super().__init__()
        trained = {name for name, p in template.named_parameters() if p.requires_grad}
        # Kept in tuples and dictionaries of our own: parameter names hold dots, which modules
        # refuse.
        self._names = tuple(state)
        for i, name in enumerate(self._names):
            if name in trained:
                self.register_parameter(f"p{i}", nn.Parameter(_as_gradient(state[name])))
            else:
                self.register_buffer(f"p{i}", state[name])
        # Hidden from the module tree, so that `parameters()` gives the stacked ones alone.
        self.__dict__["template"] = template

    def state(self) -> dict[str, Tensor]:
        """Returns the stacked parameters and buffers under the template's names."""
        return {name: getattr(self, f"p{i}") for i, name in enumerate(self._names)}

    def train(self, mode: bool = True) -> "BatchedLearner":
        """Switches noise layers and batch statistics on or off, as for any module."""
        super().train(mode)
        self.__dict__["template"].train(mode)
        return self

    @property
    def has_modes(self) -> bool:
        """Whether training and evaluation may give different predictions.

        A module that is neither PyTorch's own nor ours may do anything, so it counts.
        """
        return any(
            isinstance(module, MODAL) or not type(module).__module__.startswith(PLAIN)
            for module in self.__dict__["template"].modules()
        )

    def one(self, b: int) -> nn.Module:
        """Returns learner b as a module of its own, (points, D) to (points, C); a copy."""
        module: nn.Module = deepcopy(self.__dict__["template"])
        state = self.state()
        for name, tensor in [*module.named_parameters(), *module.named_buffers()]:
            own = state[name][b].detach()
            tensor.data = own.clone(memory_format=torch.contiguous_format)
        return module

    def placed(self) -> "PlacedLearner":
        """Returns the learners as values that gradients can flow through."""
        parameters = {name for name, _ in self.__dict__["template"].named_parameters()}
        state = self.state()
        trained = tuple(n for n in state if n in parameters and state[n].requires_grad)
        return PlacedLearner(self.__dict__["template"], state, trained)

    def forward(self, X: Tensor) -> Tensor:
        """Predicts with each learner on its own inputs, (B, points, D), as (B, points, C)."""
        return _predict(self.__dict__["template"], self.state(), values(X))


@dataclass(frozen=True)
class PlacedLearner:
    """B learners at given parameters, which need not be leaves: for gradients through training."""

    template: nn.Module
    values: dict[str, Tensor]  # by the template's names, each with a leading axis of length B
    trained: tuple[str, ...]  # the names of what training changes

    def __call__(self, X: Tensor) -> Tensor:
        """Predicts with each learner on its own inputs, (B, points, D), as (B, points, C)."""
        return _predict(self.template, self.values, values(X))

    def state(self) -> dict[str, Tensor]:
        """Returns parameters and buffers under the template's names."""
        return self.values

    def parameters(self) -> Iterator[Tensor]:
        """Returns what training changes."""
        return (self.values[name] for name in self.trained)

    def moved(self, parameters: Iterable[Tensor]) -> "PlacedLearner":
        """Returns the same learners with other parameters, in the order of `parameters`."""
        new = dict(zip(self.trained, parameters, strict=True))
        return PlacedLearner(self.template, {**self.values, **new}, self.trained)


def _predict(template: nn.Module, state: dict[str, Tensor], X: Tensor) -> Tensor:
    """Runs the template's forward pass with each of the B states on its own inputs."""

    def one(state: dict[str, Tensor], x: Tensor) -> Tensor:
        out: Tensor = functional_call(template, state, (x,))
        return out

    if len(X) == 1:  # faster by itself, and then it may be any module
        x = X[0]
        if x.ndim == 4 and x.shape[1] > 1:  # convolutions are faster with channels last
            x = x.contiguous(memory_format=torch.channels_last)
        # Not `t[0]`, whose gradient is copied into a new tensor.
        return one({name: t.squeeze(0) for name, t in state.items()}, x).unsqueeze(0)
    predictions: Tensor = vmap(one, randomness="different")(state, X)
    return predictions
