"""Files that are either whole or absent."""

import json
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

__all__ = ["read_json", "read_tensors", "write_bytes", "write_json", "write_tensors", "write_text"]


def write_bytes(path: Path, content: bytes | Iterator[bytes | memoryview]) -> None:
    """Writes a file, of parts if it is large, so that nobody ever sees less than all of it."""
    if not path.parent.is_dir():
        raise FileNotFoundError(f"{path} must be in a folder that exists, got no {path.parent}")
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.writelines([content] if isinstance(content, bytes) else content)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(name, 0o644)  # mkstemp's default would hide results from colleagues
        os.replace(name, path)
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)  # the name, too, survives a power cut
        finally:
            os.close(folder)
    except BaseException as error:
        Path(name).unlink(missing_ok=True)
        if isinstance(error, OSError) and error.filename is None:
            error.filename = str(path)  # a full disk does not say which file did not fit
        raise


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


def write_tensors(path: Path, tensors: dict[str, Tensor], header: dict[str, str]) -> None:
    """Writes tensors and a header of text to one safetensors file, whole or not at all."""
    whole = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    # An empty header next to no tensors would be written in a way that cannot be read.
    write_bytes(path, save(whole, header or None))


def read_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Reads tensors and header of a safetensors file; runs no code from it."""
    if not path.is_file():
        raise FileNotFoundError(f"{path} must be a safetensors file, got no such file")
    try:
        with safe_open(path, framework="pt") as file:
            names = list(file.keys())
            return {name: file.get_tensor(name) for name in names}, file.metadata() or {}
    except SafetensorError as error:
        got = f"a damaged one ({error})"
        raise ValueError(f"{path} must be a safetensors file, got {got}") from None
