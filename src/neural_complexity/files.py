"""Files that are either whole or absent."""

import json
import os
import reprlib
import secrets
import stat
import sys
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import is_dataclass
from pathlib import Path
from types import UnionType
from typing import Any, BinaryIO, Literal, get_args, get_origin

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from neural_complexity.locks import lock_file

__all__ = ["CHECKSUM", "PART", "check_types", "name_file", "read_json", "read_tensors"]
__all__ += ["replacing", "verify", "write_bytes", "write_json", "write_tensors", "write_text"]

PART = ".nc-part"  # what the names of unfinished files end with
CHECKSUM = "checksum"  # what files call theirs


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """Opens a new file that takes the place of an old one, if there is one, once it is whole.

    Nobody ever sees less than all of it. As when written in place, a link stays, and so do the
    permissions of the old file; those of a new one follow the umask.
    """
    path = Path(os.path.realpath(path))
    if not path.parent.is_dir():
        raise FileNotFoundError(f"{path} must be in a folder that exists, got no {path.parent}")
    if path.exists() and not path.is_file():
        raise OSError(f"{path} must be a file or not exist, got a folder or a device")
    part = None
    try:
        _remove_leftovers(path.parent)
        with _open_part(path) as file:
            part = Path(file.name)
            yield file
            file.flush()
            os.fsync(file.fileno())
            if path.exists():
                os.fchmod(file.fileno(), stat.S_IMODE(path.stat().st_mode))
            part.replace(path)
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)  # the name, too, survives a power cut
        finally:
            os.close(folder)
    except BaseException as error:
        if part is not None:
            part.unlink(missing_ok=True)
        name_file(error, path)
        raise


def name_file(error: BaseException, path: Path) -> None:
    """Makes an error of the system, such as that of a full disk, say which file it is about."""
    if isinstance(error, OSError) and error.errno is not None and error.filename is None:
        error.filename = str(path)


def _open_part(path: Path) -> BinaryIO:
    """Opens a new file beside a path, locked, so that others do not take it for a leftover."""
    while True:
        file = path.with_name(f".{path.name}.{secrets.token_hex(4)}{PART}").open("xb")
        try:
            if lock_file(file.fileno()) and os.fstat(file.fileno()).st_nlink:
                return file
        except OSError:  # a file system without locks, on which leftovers are not told
            return file
        file.close()  # somebody was faster than the lock


def _remove_leftovers(folder: Path) -> None:
    """Deletes what processes that are no more have left of files that they did not finish."""
    for part in folder.glob(f".*{PART}"):
        with suppress(OSError), part.open("r+b") as file:  # finished in the meantime, or not ours
            if lock_file(file.fileno()):
                part.unlink()


def write_bytes(path: Path, content: bytes | Iterator[bytes | memoryview]) -> None:
    """Writes a file, of parts if it is large, whole or not at all."""
    with replacing(path) as file:
        file.writelines([content] if isinstance(content, bytes) else content)


def write_text(path: Path, content: str) -> None:
    """Writes a UTF-8 text file whole or not at all."""
    write_bytes(path, content.encode())


def write_json(path: Path, content: Any) -> None:
    """Writes a JSON file whole or not at all; NaN and infinity are refused, JSON has neither."""
    write_text(path, json.dumps(content, indent=2, allow_nan=False) + "\n")


def read_json(path: Path) -> dict[str, Any]:
    """Reads a JSON object; a file without one is a `ValueError`."""
    try:
        content = json.loads(path.read_text())
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} must hold JSON, got something else ({error})") from None
    if not isinstance(content, dict):
        raise ValueError(f"{path} must hold a JSON object, got {type(content).__name__}")
    return content


def check_types(types: Mapping[str, Any], values: dict[str, Any]) -> None:
    """Refuses values from JSON, by name, that are of other types than given, or not finite."""
    for name, kind in types.items():
        if name in values and not _fits(values[name], kind):
            wanted = getattr(kind, "__name__", str(kind))
            raise TypeError(f"{name} must be of type {wanted}, got {reprlib.repr(values[name])}")


def _fits(value: Any, kind: Any) -> bool:
    """Whether a value from JSON is of a type; that of a class is any object."""
    origin, inner = get_origin(kind), get_args(kind)
    if origin is UnionType:
        return any(_fits(value, option) for option in inner)
    if origin is Literal:
        return value in inner
    if origin is tuple and isinstance(value, list):
        each = inner[:1] * len(value) if inner[-1] is ... else inner
        return len(value) == len(each) and all(map(_fits, value, each))
    if origin is dict and isinstance(value, dict):
        return all(_fits(each, inner[1]) for each in value.values())
    if kind is Any or is_dataclass(kind):
        return kind is Any or isinstance(value, dict)
    if kind is int:
        return type(value) is int and abs(value) <= sys.maxsize
    if kind is float:
        return type(value) in (int, float) and abs(value) <= sys.float_info.max
    return type(value) is kind


def write_tensors(path: Path, tensors: dict[str, Tensor], header: dict[str, str]) -> None:
    """Writes tensors and a header of text to one safetensors file, whole or not at all."""
    whole = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    write_bytes(path, save(whole, {**header, CHECKSUM: _checksum(whole, header)}))


def read_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Reads tensors and header of a safetensors file; runs no code from it.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If it is of another kind, or changed after it was written.
    """
    if not path.is_file():
        raise FileNotFoundError(f"{path} must be a safetensors file, got no such file")
    try:
        with safe_open(path, framework="pt") as file:
            names, header = list(file.keys()), file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in names}
            expected = header.pop(CHECKSUM, None)  # which files of earlier versions do not have
            found = None if expected is None else _checksum(tensors, header)
    # A type of numbers that this version of PyTorch lacks, or knows in part, is no error of either.
    except (SafetensorError, AttributeError, RuntimeError) as error:
        got = f"a damaged one ({error})"
        raise ValueError(f"{path} must be a safetensors file, got {got}") from None
    verify(str(path), expected, found)
    return tensors, header


def verify(what: str, expected: object, found: object) -> None:
    """Refuses what has another checksum than it was written with."""
    if found != expected:
        wanted = f"the checksum {expected} that it was written with"
        raise ValueError(f"{what} must have {wanted}, got {found}: it is damaged")


def _checksum(tensors: dict[str, Tensor], header: dict[str, str]) -> str:
    """Returns a checksum of all that is in a safetensors file, in hexadecimal."""
    kinds = [(name, str(t.dtype), list(t.shape)) for name, t in sorted(tensors.items())]
    total = zlib.crc32(json.dumps([sorted(header.items()), kinds]).encode())
    for _, tensor in sorted(tensors.items()):
        total = zlib.crc32(tensor.flatten().view(torch.uint8).numpy().data, total)
    return f"{total:08x}"
