"""Unfinished work on disk: what was done under the same settings is not done again."""

import hashlib
import json
import re
import shutil
import sys
import time
import zlib
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import partial
from pathlib import Path
from types import CellType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from neural_complexity.files import read_tensors, write_tensors

__all__ = ["Workspace", "fingerprint", "users_code"]

FILE = ".safetensors"
OWN = __name__.split(".")[0]  # the package
Tensors = dict[str, Tensor]
NAMED = torch.dtype | torch.device | Path | Enum  # their text says all about them


def fingerprint(*things: object) -> str:
    """Returns a SHA-256, in hexadecimal, of what things are made of, the same in every process."""
    return _hash(json.dumps([_describe(thing, ()) for thing in things]).encode())


class Workspace:
    """A folder of unfinished work, one safetensors file for each part that is done.

    Args:
        folder: Made when something is written; nothing is kept if `None`.
        fingerprint: Of all that decides the results: parts with another one are refused.
    """

    def __init__(self, folder: Path | None, fingerprint: str = "") -> None:
        self.folder, self.fingerprint = folder, fingerprint
        self.seconds: dict[str, float] = {}  # of each part done, over all sessions

    def path(self, name: str, ending: str = "") -> Path | None:
        """Returns where to keep what is no tensor under a name; different names never meet."""
        plain = re.sub(r"[^a-z0-9._]+", "-", name.lower())
        # A checksum where letters of the name are lost.
        lost = "" if plain == name else f"-{zlib.crc32(name.encode()):08x}"
        return self.folder and self.folder / f"{plain}{lost}{ending}"

    def sub(self, name: str, *more: object) -> "Workspace":
        """Returns the workspace of a part, whose results `more` decides as well."""
        own = fingerprint(self.fingerprint, *more) if more else self.fingerprint
        return Workspace(self.path(name), own)

    def read(self, name: str) -> tuple[Tensors, dict[str, Any]] | None:
        """Returns what `write` kept under a name, if it did; of other settings it is an error."""
        path = self.path(name, FILE)
        if path is None or not path.exists():
            return None
        tensors, header = read_tensors(path)
        if set(header) != {"fingerprint", "content"}:
            raise ValueError(f"{path} must be unfinished work, got another file")
        if header["fingerprint"] != self.fingerprint:
            raise ValueError(f"{path} must be of the same settings, got one of others")
        try:
            return tensors, json.loads(header["content"])
        except json.JSONDecodeError as error:  # in a file without a checksum
            raise ValueError(f"{path} must hold JSON, got a damaged file ({error})") from None

    def write(self, name: str, tensors: Tensors | None = None, content: Any = None) -> None:
        """Keeps tensors and JSON values under a name, in one file, whole or not at all."""
        path = self.path(name, FILE)
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            header = {"fingerprint": self.fingerprint, "content": json.dumps(content or {})}
            write_tensors(path, tensors or {}, header)

    def do(self, name: str, work: Callable[[], Tensors]) -> Tensors:
        """Returns the tensors of a part, on the CPU and by sorted names; works only if need be.

        `work` must be a pure function of what the fingerprint describes.
        """
        assert name not in self.seconds, f"two parts are called {name}"
        kept, start = self.read(name), time.perf_counter()
        if kept is None:
            tensors = {key: tensor.detach().cpu() for key, tensor in work().items()}
            kept = tensors, {"seconds": time.perf_counter() - start}
            self.write(name, *kept)
        tensors, content = kept
        self.seconds[name] = content["seconds"]
        # A file has an order of its own: the caller must not see where the tensors came from.
        return {key: tensors[key] for key in sorted(tensors)}

    def remove(self, name: str) -> None:
        """Deletes the file and the folder of a part that is no longer needed."""
        if file := self.path(name, FILE):
            file.unlink(missing_ok=True)
            shutil.rmtree(str(self.path(name)), ignore_errors=True)


def users_code(*things: object) -> list[Any]:
    """Returns the code that users wrote of what things are made of, as JSON.

    Names do not tell functions and classes apart: whoever edits a script keeps them. So what code
    refers to, such as global values, belongs to it, and what that refers to, but for what is of
    Python, of this library or of an installed package.
    """
    found, seen, todo = list[Any](), dict[int, object](), list(things)
    while todo:
        thing = todo.pop()
        if id(thing) in seen or isinstance(thing, str | bytes | Tensor | np.ndarray):
            continue
        seen[id(thing)] = thing  # kept, so that no other thing gets its id
        users = _is_users(thing if isinstance(thing, FunctionType | type) else type(thing))
        if isinstance(thing, partial):
            todo += [thing.func, *thing.args, *thing.keywords.values()]
        elif isinstance(thing, MethodType):
            todo += [thing.__func__, thing.__self__]
        elif isinstance(thing, staticmethod | classmethod | property):
            todo += [thing.fget if isinstance(thing, property) else thing.__func__]
        elif isinstance(thing, Mapping):
            todo += thing.values()
        elif isinstance(thing, list | tuple | set | frozenset):
            todo += thing
        elif isinstance(thing, FunctionType):
            cells = [cell for cell in thing.__closure__ or () if cell != CellType()]
            todo += [cell.cell_contents for cell in cells]
            todo += [thing.__defaults__, thing.__kwdefaults__]
            if users:
                named = _globals(thing)
                found.append([_describe(thing, ()), _values(named)])
                todo += named.values()
        elif isinstance(thing, type):
            if users:
                named = {name: v for name, v in vars(thing).items() if not name.startswith("__")}
                found.append([_describe(thing, ()), _values(named)])
                todo += [*vars(thing).values(), *thing.__bases__]
        elif users or is_dataclass(thing) or isinstance(thing, nn.Module):
            todo += [type(thing), *getattr(thing, "__dict__", {}).values()]
    return sorted(found, key=json.dumps)


def _is_users(thing: Any) -> bool:
    """Whether a module, function or class is not of Python, this library or a package."""
    name = thing.__name__ if isinstance(thing, ModuleType) else str(thing.__module__)
    path = Path(getattr(sys.modules.get(name), "__file__", None) or "")
    installed = {"site-packages", "dist-packages"} & set(path.parts)
    return not installed and name.split(".")[0] not in {*sys.stdlib_module_names, OWN}


def _globals(function: FunctionType) -> dict[str, Any]:
    """Returns the global values that a function refers to, also in functions inside it, by name."""
    names, todo = set[str](), [function.__code__]
    while todo:
        code = todo.pop()
        names |= set(code.co_names)
        todo += [const for const in code.co_consts if isinstance(const, CodeType)]
    found = {name: function.__globals__[name] for name in names & set(function.__globals__)}
    for name, module in list(found.items()):  # of which attributes are asked for
        if isinstance(module, ModuleType) and _is_users(module):
            found |= {f"{name}.{n}": getattr(module, n) for n in names if hasattr(module, n)}
    return found


def _values(named: Mapping[str, Any]) -> dict[str, Any]:
    """Describes what says by itself what it is, unlike the code of users or an address."""
    codes = FunctionType, type, ModuleType
    own = {n: v for n, v in named.items() if not (isinstance(v, codes) and _is_users(v))}
    return {n: _describe(v, ()) for n, v in sorted(own.items()) if " at 0x" not in repr(v)}


def _hash(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _describe(thing: Any, above: tuple[int, ...]) -> Any:
    """Returns JSON that other things do not have; `above` are the objects that hold this one."""
    if thing is None or isinstance(thing, bool | int | float | str):
        return thing
    if id(thing) in above:
        return ["above", len(above) - above.index(id(thing))]
    inner = partial(_describe, above=(*above, id(thing)))
    kind = f"{type(thing).__module__}.{type(thing).__qualname__}"
    if isinstance(thing, Tensor | np.ndarray | np.generic):
        if isinstance(thing, Tensor):  # as bytes, since NumPy does not know all of PyTorch's types
            dense = thing.detach().cpu().to_dense().resolve_conj().contiguous().flatten()
            content = _hash(dense.view(torch.uint8).numpy().tobytes())
        else:
            content = inner(thing.tolist()) if thing.dtype == object else _hash(thing.tobytes())
        return [str(thing.dtype), list(thing.shape), content]
    if isinstance(thing, bytes | NAMED):
        return [kind, _hash(thing) if isinstance(thing, bytes) else str(thing)]
    if isinstance(thing, Mapping):
        pairs = [[inner(key), inner(value)] for key, value in thing.items()]
        return ["mapping", sorted(pairs, key=json.dumps)]
    if isinstance(thing, list | tuple):
        return [inner(item) for item in thing]
    if isinstance(thing, set | frozenset):
        return ["set", sorted((inner(item) for item in thing), key=json.dumps)]
    if isinstance(thing, nn.Module):
        return [kind, repr(thing), inner(dict(thing.state_dict()))]
    if isinstance(thing, partial):
        return ["partial", inner(thing.func), inner(thing.args), inner(thing.keywords)]
    if isinstance(thing, MethodType):
        return ["method", inner(thing.__func__), inner(thing.__self__)]
    if isinstance(thing, FunctionType):
        # A cell is empty until its name is bound; comparing it asks for no content.
        cells = [cell for cell in thing.__closure__ or () if cell != CellType()]
        enclosed = [inner(cell.cell_contents) for cell in cells]
        defaults = [inner(thing.__defaults__), inner(thing.__kwdefaults__)]
        return [thing.__module__, thing.__qualname__, inner(thing.__code__), enclosed, defaults]
    if isinstance(thing, CodeType):
        return [_hash(thing.co_code), inner(thing.co_consts), inner(thing.co_names)]
    if hasattr(thing, "__qualname__"):  # a class, or a function that is not written in Python
        return [getattr(thing, "__module__", None), thing.__qualname__]
    if is_dataclass(thing):
        names = [field.name for field in fields(thing) if field.compare]
        return [kind, {name: inner(getattr(thing, name)) for name in names}]
    text = repr(thing)  # says all, unless it is an address
    return [kind, inner(getattr(thing, "__dict__", {})) if " at 0x" in text else text]
