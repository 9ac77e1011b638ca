"""Files of public datasets: where they live, and how they get there."""

import gzip
import hashlib
import os
import tempfile
import textwrap
import zlib
from collections.abc import Sequence
from pathlib import Path

import pooch

__all__ = ["VARIABLE", "cache_folder", "data_folder", "find_file"]

VARIABLE = "NEURAL_COMPLEXITY_DATA"
TIMEOUT = (5, 10)  # seconds to reach a server, and to wait for the next bytes of its answer
MAX_CONTENT = 1_000_000_000  # bytes of a gzip file that are looked at


def cache_folder() -> Path:
    """Gives the user's cache folder; it need not exist."""
    return Path(pooch.os_cache("neural-complexity"))


def data_folder(given: str | Path | None = None) -> Path:
    """Gives the folder that datasets are looked for in; it need not exist.

    Args:
        given: The user's choice. Without one it is the environment variable
            NEURAL_COMPLEXITY_DATA, and without that the user's cache folder.
    """
    chosen = given or os.environ.get(VARIABLE)
    return Path(chosen).expanduser() if chosen else cache_folder()


def find_file(
    folder: Path,
    name: str,
    *,
    dataset: str,
    checksum: str,
    urls: Sequence[str],
    download: bool = True,
) -> Path:
    """Finds a file of a dataset, `folder/name` or `folder/dataset/name`, or downloads it there.

    A file that is there already is taken as it is: its reader decides whether the content will do.

    Args:
        folder: The data folder.
        name: The file's name.
        dataset: The name of the dataset's own folder in it, where downloads go.
        checksum: What a download must have, as `algorithm:hexadecimal digits`; or, with `gzip+` in
            front, what the content of a gzip file must have, however it was packed.
        urls: Where it can be had, best first.
        download: Whether to try.

    Returns:
        The file's path.

    Raises:
        FileNotFoundError: If it is neither there nor to be had.
        ValueError: If a download has another checksum.
    """
    own = folder / dataset / name
    for path in (folder / name, own):
        if path.is_file():
            return path
    reason = "and downloads are off"
    for url in urls if download else ():
        try:
            _download(url, own, checksum)
        except OSError as error:  # no network, no such page, a full disk
            said = textwrap.shorten(str(error), 100, placeholder=" ...")
            reason = f"and downloading it failed ({type(error).__name__}: {said})"
        else:
            return own
    raise FileNotFoundError(
        f"{name} must be put into {own.parent}, from {urls[0]}: there is no such file yet, {reason}"
    )


def _download(url: str, path: Path, checksum: str) -> None:
    """Downloads a file, whole and with the right checksum or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=f".{path.name}.") as own:
        part = Path(own) / path.name
        pooch.HTTPDownloader(timeout=TIMEOUT)(url, str(part), None)
        kind, _, expected = checksum.partition(":")
        algorithm = kind.removeprefix("gzip+")
        if algorithm == kind:
            got = pooch.file_hash(str(part), alg=algorithm)
        else:
            got = _content_hash(part, algorithm)
        if got != expected:
            raise ValueError(f"{url} must have the {kind} checksum {expected}, got {got}")
        os.replace(part, path)


def _content_hash(path: Path, algorithm: str) -> str:
    """Gives the checksum of what a gzip file holds, or says that there is none."""
    digest = hashlib.new(algorithm)
    left = MAX_CONTENT
    try:
        with gzip.open(path) as file:
            while (piece := file.read(1 << 20)) and left > 0:
                digest.update(piece)
                left -= len(piece)
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        return f"a damaged gzip file ({error})"
    return digest.hexdigest() if left > 0 else f"more than {MAX_CONTENT} bytes"
