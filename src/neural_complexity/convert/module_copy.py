"""A copy of a user's module in evaluation mode, so that asking it leaves its own as it is."""

from collections.abc import Iterator
from copy import deepcopy
from functools import partial
from types import MethodType
from typing import Any

import torch
from torch import Tensor, nn

__all__ = ["evaluation_copy"]

# What may hold modules, or be bound to one, and is therefore copied.
COPIED = (nn.Module, partial, MethodType)


def evaluation_copy(model: nn.Module, *, learns: bool = False) -> nn.Module:
    """Returns a copy of a module in evaluation mode, which shares the memory of its parameters.

    Whatever a pass through the copy writes to (modes, buffers, gradients, attributes) is its own;
    so any number of threads may ask one module at once while another trains it. Other objects,
    which may be locks or loggers, are shared as they are.

    Args:
        model: The module, which is not changed.
        learns: Whether gradients of the copy go to the parameters of the module.

    Raises:
        ValueError: If it cannot be copied.
    """
    # A context manager that changes the module and puts it back, as `functional_call` is one, too,
    # would change it for every thread.
    try:
        modules = [m for m in model.modules() if not isinstance(m, torch.jit.ScriptModule)]
        shared = [value for module in modules for value in _values(vars(module))]
        tensors = [v for v in shared if isinstance(v, Tensor) and not isinstance(v, nn.Parameter)]
        memo: dict[int, Any] = {id(value): value for value in shared}
        memo |= {id(value): value.clone() for value in tensors}
        if not learns:
            memo |= {id(p): nn.Parameter(p.detach(), p.requires_grad) for p in model.parameters()}
        return deepcopy(model, memo).eval()
    except Exception as error:  # a module may hold anything
        reason = f"{type(error).__name__}: {(str(error).splitlines() or [''])[0].rstrip('.')}"
        wanted = "a module that copy.deepcopy can copy, or a function that calls it"
        raise ValueError(f"model must be {wanted}, got {reason}") from error


def _values(value: Any) -> Iterator[Any]:
    """Yields what is in attributes and, at any depth, in the containers among them."""
    if isinstance(value, dict | list | tuple | set | frozenset):
        for part in value.values() if isinstance(value, dict) else value:
            yield from _values(part)
    elif not isinstance(value, COPIED):
        yield value
