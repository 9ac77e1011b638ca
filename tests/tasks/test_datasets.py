"""The downloader, against a server of our own."""

import hashlib
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pytest
import torch

from neural_complexity.tasks import datasets
from neural_complexity.tasks.datasets import (
    DataFile,
    cache_folder,
    cached,
    data_folder,
    find_file,
)

CONTENT = b"a dataset" * 10_000
MD5 = "md5:" + hashlib.md5(CONTENT).hexdigest()
SHA256 = "sha256:" + hashlib.sha256(CONTENT).hexdigest()

Find = Callable[..., Path]


class Handler(BaseHTTPRequestHandler):
    """Serves one file, a part of it, or nothing at all."""

    asked: list[str] = []  # noqa: RUF012 (shared by all requests, on purpose)
    over = Event()

    def do_GET(self) -> None:
        self.asked.append(self.path)
        if self.path == "/silent":
            self.over.wait(30)
            return None
        if self.path not in ("/file", "/cut"):
            return self.send_error(404)
        self.send_response(200)
        self.send_header("Content-Length", str(len(CONTENT)))
        self.end_headers()
        self.wfile.write(CONTENT if self.path == "/file" else CONTENT[:1000])

    def log_message(self, *_: object) -> None:
        """Says nothing."""


@pytest.fixture
def server() -> Iterator[str]:
    Handler.asked.clear()
    Handler.over.clear()
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        Handler.over.set()
        server.shutdown()
        thread.join()


@pytest.fixture
def find(tmp_path: Path) -> Find:
    def look(urls: list[str], download: bool = True, **more: Any) -> Path:
        settings: dict[str, Any] = {"checksums": (MD5,), **more}
        file = DataFile("letters", "data.zip", urls=tuple(urls), **settings)
        return find_file(file, tmp_path, download)

    return look


def left(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


@pytest.mark.parametrize("checksum", [MD5, SHA256])
def test_a_missing_file_is_downloaded_once(
    find: Find, server: str, tmp_path: Path, checksum: str
) -> None:
    for _ in range(2):
        path = find(checksums=(checksum,), urls=[f"{server}/file"])
        assert path == tmp_path / "letters" / "data.zip"
        assert path.read_bytes() == CONTENT
    assert Handler.asked == ["/file"]
    assert left(tmp_path) == [path]


@pytest.mark.parametrize("place", ["data.zip", "letters/data.zip"])
def test_a_file_that_is_there_is_taken_as_it_is(find: Find, tmp_path: Path, place: str) -> None:
    (tmp_path / "letters").mkdir()
    (tmp_path / place).write_bytes(b"packed anew")
    assert find(urls=["http://127.0.0.1:1/file"]) == tmp_path / place


def test_a_file_that_is_there_must_have_a_checksum_if_its_reader_trusts_it(
    find: Find, tmp_path: Path
) -> None:
    path = tmp_path / "data.zip"
    path.write_bytes(CONTENT)
    for checksums in ((MD5,), (SHA256,), ("md5:0123", SHA256), (MD5, "md5:0123")):
        assert find([], checksums=checksums, verify=True) == path
    path.write_bytes(b"packed anew")
    with pytest.raises(ValueError, match=rf"^{path} must have the md5 checksum {MD5[4:]}, got"):
        find([], verify=True)
    (tmp_path / "data.bin").touch()  # its own reader decides
    assert find([], verify=True, unpacked=("data.bin",)) == tmp_path / "data.bin"


def test_another_checksum_is_refused_and_nothing_is_left(
    find: Find, server: str, tmp_path: Path
) -> None:
    sentence = rf"{server}/file must have the md5 checksum 0123, got {MD5[4:]}"
    with pytest.raises(ValueError, match=sentence):
        find(checksums=("md5:0123",), urls=[f"{server}/file"])
    assert left(tmp_path) == []


@pytest.mark.parametrize(("page", "reason"), [("gone", "HTTPError: 404"), ("cut", "ncomplete")])
def test_a_failed_download_names_file_folder_and_address(
    find: Find, server: str, tmp_path: Path, page: str, reason: str
) -> None:
    url = f"{server}/{page}"
    with pytest.raises(FileNotFoundError) as caught:
        find(urls=[url])
    sentence = str(caught.value)
    expected = f"data.zip must be put into {tmp_path / 'letters'}, from {url}: "
    assert sentence.startswith(expected)
    assert reason in sentence
    assert len(sentence.removeprefix(expected)) < 250
    assert left(tmp_path) == []


def test_the_next_address_is_tried(find: Find, server: str) -> None:
    urls = ["http://127.0.0.1:1/file", f"{server}/gone", f"{server}/file"]
    assert find(urls=urls).read_bytes() == CONTENT


def test_without_a_server_it_fails_at_once(find: Find) -> None:
    before = time.monotonic()
    with pytest.raises(FileNotFoundError, match="ConnectionError"):
        find(urls=["http://127.0.0.1:1/file"])
    assert time.monotonic() - before < 5


def test_a_silent_server_is_given_up(
    find: Find, server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert max(datasets.TIMEOUT) <= 10
    monkeypatch.setattr(datasets, "TIMEOUT", (0.2, 0.2))
    with pytest.raises(FileNotFoundError, match="ReadTimeout"):
        find(urls=[f"{server}/silent"])
    assert left(tmp_path) == []


def test_downloads_can_be_off(find: Find, server: str) -> None:
    with pytest.raises(FileNotFoundError, match=r"data.zip must be put into .*downloads are off"):
        find(urls=[f"{server}/file"], download=False)
    assert Handler.asked == []


def test_a_folder_that_cannot_be_made_is_said(server: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(FileNotFoundError, match="downloading it failed"):
        find_file(DataFile("x", "data.zip", (MD5,), (f"{server}/file",)), tmp_path / "file")


def test_the_folder_is_the_argument_else_the_variable_else_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NEURAL_COMPLEXITY_DATA", str(tmp_path))
    assert data_folder("here") == data_folder(Path("here")) == Path("here")
    assert data_folder() == tmp_path
    assert data_folder("~/data") == Path.home() / "data"
    monkeypatch.setenv("NEURAL_COMPLEXITY_DATA", "")
    assert data_folder() == cache_folder()
    monkeypatch.delenv("NEURAL_COMPLEXITY_DATA")
    assert data_folder() == cache_folder()
    assert cache_folder().name == "neural-complexity"


# What is kept of files


@pytest.fixture
def users_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(datasets, "cache_folder", lambda: tmp_path / "cache")
    return tmp_path / "cache"


def test_what_was_read_is_not_read_again(tmp_path: Path, users_cache: Path) -> None:
    readings = []

    def read() -> dict[str, torch.Tensor]:
        readings.append(1)
        return {"a": torch.arange(3)}

    for folder, fingerprint, times in (("x", "1", 1), ("x", "1", 1), ("x", "2", 2), ("y", "2", 3)):
        kept = cached("name", fingerprint, tmp_path / folder, read)
        assert torch.equal(kept["a"], torch.arange(3))
        assert len(readings) == times
    assert not users_cache.exists()
    (file,) = (tmp_path / "y").iterdir()
    for content in (b"", b"hello", file.read_bytes()[:-3]):  # made again
        file.write_bytes(content)
        assert torch.equal(cached("name", "2", tmp_path / "y", read)["a"], torch.arange(3))
        times += 1
        assert len(readings) == times


def test_a_folder_that_cannot_be_written_to_leaves_the_users_cache(
    tmp_path: Path, users_cache: Path
) -> None:
    (tmp_path / "file").touch()  # no folder at all
    for _ in range(2):
        assert cached("name", "1", tmp_path / "file" / "x", lambda: {"a": torch.ones(1)})
    assert len(list(users_cache.iterdir())) == 1
    users_cache.rename(tmp_path / "other")
    users_cache.touch()
    assert cached("name", "1", tmp_path / "file" / "x", lambda: {"a": torch.ones(1)})
