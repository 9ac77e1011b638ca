"""Files of public datasets: where they live, how they get there, and what is kept of them."""

import gzip
import hashlib
import os
import tempfile
import textwrap
import zlib
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pooch
from torch import Tensor

from neural_complexity.workspace import Workspace

__all__ = ["VARIABLE", "DataFile", "cache_folder", "cached", "data_folder", "find_file"]

VARIABLE = "NEURAL_COMPLEXITY_DATA"
Tensors = dict[str, Tensor]
TIMEOUT = (5, 10)  # seconds to reach a server, and to wait for the next bytes of its answer


@dataclass(frozen=True)
class DataFile:
    """A published file of a dataset."""

    folder: str  # where it belongs within the data folder
    name: str
    checksums: tuple[str, ...]  # one must fit: algorithm:digits; gzip+ for the unpacked content
    urls: tuple[str, ...]  # best first
    unpacked: tuple[str, ...] = ()  # what it may have been unpacked to, in the same places
    verify: bool = False  # a file that is there, too: needed by readers that trust the content


def cache_folder() -> Path:
    """Returns the user's cache folder; it need not exist."""
    return Path(pooch.os_cache("neural-complexity"))


def data_folder(given: str | Path | None = None) -> Path:
    """Returns the given folder, else that of NEURAL_COMPLEXITY_DATA, else the cache folder."""
    chosen = given or os.environ.get(VARIABLE)
    return Path(chosen).expanduser() if chosen else cache_folder()


def find_file(file: DataFile, data: Path, download: bool = True) -> Path:
    """Returns the path of a file, or of what it was unpacked to, in its folder or the one above.

    Else it is downloaded; a FileNotFoundError says where to put one that cannot be.
    """
    own = data / file.folder / file.name
    places = [own.parent, own.parent.parent]
    for path in [place / name for name in (*file.unpacked, file.name) for place in places]:
        if path.is_file():
            if file.verify and path.name == file.name:
                _check(path, file, str(path))
            return path
    reason = "and downloads are off"
    for url in file.urls if download else ():
        try:
            _download(url, own, file)
        except OSError as error:  # no network, no such page, a full disk
            said = textwrap.shorten(str(error), 100, placeholder=" ...")
            reason = f"and downloading it failed ({type(error).__name__}: {said})"
        else:
            return own
    wanted = f"must be put into {own.parent}, from {file.urls[0]}"
    raise FileNotFoundError(f"{file.name} {wanted}: there is no such file yet, {reason}")


def cached(name: str, fingerprint: str, folder: Path, read: Callable[[], Tensors]) -> Tensors:
    """Returns what `read` returns, once: it is kept in the folder or else in the user's cache."""
    places = [Workspace(place, fingerprint) for place in (folder, cache_folder())]
    for place in places:
        with suppress(OSError, ValueError):  # damaged, or of another file of this name
            if (kept := place.read(name)) is not None:
                return kept[0]
    tensors = read()
    for place in places:
        with suppress(OSError):  # a read-only folder, a full disk: no reason to fail
            place.write(name, tensors)
            break
    return tensors


def _download(url: str, path: Path, file: DataFile) -> None:
    """Downloads a file, whole and with the right checksum or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=f".{path.name}.") as own:
        part = Path(own) / path.name
        pooch.HTTPDownloader(timeout=TIMEOUT)(url, str(part), None)
        _check(part, file, url)
        os.replace(part, path)


def _check(path: Path, file: DataFile, source: str) -> None:
    for kind, expected in (checksum.split(":") for checksum in file.checksums):
        algorithm = kind.removeprefix("gzip+")
        try:
            with open(path, "rb") if kind == algorithm else gzip.open(path) as content:
                got = hashlib.file_digest(content, algorithm).hexdigest()
        except (gzip.BadGzipFile, EOFError, zlib.error) as error:
            got = f"a damaged gzip file ({error})"
        if got == expected:
            return
    raise ValueError(f"{source} must have the {kind} checksum {expected}, got {got}")
