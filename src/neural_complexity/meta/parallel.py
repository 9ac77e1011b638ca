"""One network trained by several processes, each on its share of every batch."""

import pickle
from collections.abc import Callable, Sequence
from functools import partial
from multiprocessing import get_context
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from neural_complexity.cores import passive_threads
from neural_complexity.tasks.families import check_sizes

__all__ = ["add_up", "from_leader", "in_parallel", "leads", "own_device", "processes", "share"]

T = TypeVar("T")
_store = partial(dist.TCPStore, "127.0.0.1")  # type: ignore[attr-defined]


def in_parallel(many: int, function: Callable[..., T], *args: Any, **here: Any) -> T:
    """Calls a function in several processes, this one among them, and returns the result here.

    Inside, the functions of this module know of the others, which get a copy of the arguments.
    Keyword arguments are for this process alone. A script that calls this with more than one
    process needs `if __name__ == "__main__":`.
    """
    check_sizes(processes=many)
    if many == 1:
        return function(*args, **here)
    context = get_context("spawn")
    store = _store(0, many, is_master=True, wait_for_workers=False)
    threads, dtype = torch.get_num_threads(), torch.get_default_dtype()
    # As bytes: tensors would be shared with the others, and each would train the same weights.
    how = many, store.port, threads, dtype, pickle.dumps((function, args))
    others = [context.Process(target=_follow, args=(i, *how)) for i in range(1, many)]
    try:
        with passive_threads():
            for other in others:
                other.daemon = True  # it ends with this process
                other.start()
        _join(store, 0, many)
        result = function(*args, **here)
        for other in others:
            other.join()
        return result
    finally:
        for other in others:
            if other.is_alive():
                other.kill()
                other.join()
        if dist.is_initialized():
            dist.destroy_process_group()


def _join(store: Any, rank: int, many: int) -> None:
    backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
    dist.init_process_group(backend, store=store, rank=rank, world_size=many)


def _follow(rank: int, many: int, port: int, threads: int, dtype: torch.dtype, call: bytes) -> None:
    """Does in another process what the first one does."""
    torch.set_num_threads(threads)
    torch.set_default_dtype(dtype)
    function, args = pickle.loads(call)
    _join(_store(port, many, is_master=False), rank, many)
    try:
        function(*args)
    finally:
        dist.destroy_process_group()


def leads() -> bool:
    """Returns whether this process is the one that writes files and tells of progress."""
    return not dist.is_initialized() or dist.get_rank() == 0


def processes() -> int:
    """Returns how many processes work together."""
    return dist.get_world_size() if dist.is_initialized() else 1


def own_device(device: torch.device) -> torch.device:
    """Returns this process's device of a kind: each has a GPU of its own."""
    many_gpus = device.type == "cuda" and processes() > 1
    return torch.device("cuda", dist.get_rank()) if many_gpus else device


def share(things: Sequence[T]) -> Sequence[T]:
    """Returns those things that are this process's to work on: as many as the others'."""
    many = processes()
    if len(things) % many:
        raise ValueError(f"a batch must be a multiple of {many} processes, got {len(things)}")
    return things[0 if leads() else dist.get_rank() :: many]


def from_leader(make: Callable[[], T]) -> T:
    """Returns what the first process makes, in all of them."""
    if not dist.is_initialized():
        return make()
    found = [make() if leads() else None]
    dist.broadcast_object_list(found)
    made: T = found[0]  # type: ignore[assignment]
    return made


def add_up(tensors: Sequence[Tensor]) -> None:
    """Adds tensors of one type up over all processes, in place and as one message."""
    if dist.is_initialized():
        whole = parameters_to_vector(tensors)
        dist.all_reduce(whole)
        vector_to_parameters(whole, tensors)
