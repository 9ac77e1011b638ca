import errno
import os
import resource
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save

from neural_complexity.files import (
    PART,
    read_json,
    read_tensors,
    replacing,
    write_bytes,
    write_json,
    write_tensors,
    write_text,
)


def test_a_failed_write_keeps_the_old_file_and_leaves_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "weights"
    write_bytes(path, b"old")

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match=r"No space left on device.*weights"):
        write_bytes(path, b"new")
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_json_refuses_numbers_that_json_does_not_have(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="JSON"):
        write_json(tmp_path / "a.json", {"loss": float("nan")})
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("content", [b"", b"{", b"[1]", b"\xff\xfe"])
def test_reading_something_else_says_so(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "config.json"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"config.json must hold"):
        read_json(path)


def test_a_folder_that_is_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="file must be in a folder that exists, got no "):
        write_text(tmp_path / "gone" / "file", "")


TENSORS = {
    "weights": torch.arange(6, dtype=torch.float32).view(2, 3).T,
    "labels": torch.tensor([3, 1]),
    "none": torch.zeros(0, 3),
    "one": torch.tensor(True),
    "half": torch.ones(2, dtype=torch.bfloat16),
}


@given(st.integers(0, 10**6), st.integers(0, 7))
def test_a_flipped_bit_is_never_read(
    tmp_path_factory: pytest.TempPathFactory, place: int, bit: int
) -> None:
    path = tmp_path_factory.mktemp("flipped") / "file"
    write_tensors(path, TENSORS, {"format": "a", "note": "b"})
    content = bytearray(path.read_bytes())
    content[place % len(content)] ^= 1 << bit
    path.write_bytes(content)
    try:
        tensors, header = read_tensors(path)
    except ValueError as error:
        assert "file must" in str(error)  # noqa: PT017
        return
    # Blanks at the end of a header mean nothing, nor does what the checksum is called.
    assert {"format": "a", "note": "b"}.items() <= header.items()
    assert all(torch.equal(tensors[name], tensor) for name, tensor in TENSORS.items())


def test_damage_is_called_so_and_files_without_a_checksum_are_read(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write_tensors(path, TENSORS, {"note": "b"})
    tensors, header = read_tensors(path)
    assert header == {"note": "b"}
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    sentence = r"file must have the checksum [0-9a-f]{8} that .*, got [0-9a-f]{8}: it is damaged"
    with pytest.raises(ValueError, match=sentence):
        read_tensors(path)
    path.write_bytes(save(tensors, {"note": "b"}))  # as earlier versions did
    assert read_tensors(path)[1] == {"note": "b"}


@pytest.fixture
def umask(request: pytest.FixtureRequest) -> Iterator[int]:
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


@pytest.mark.parametrize("umask", [0o077, 0o022, 0o002], indirect=True)
def test_permissions_are_those_that_the_user_wants(tmp_path: Path, umask: int) -> None:
    path = tmp_path / "file"
    write_bytes(path, b"new")
    assert stat.S_IMODE(path.stat().st_mode) == 0o666 & ~umask
    path.chmod(0o640)
    write_bytes(path, b"again")
    assert stat.S_IMODE(path.stat().st_mode) == 0o640


def test_a_link_stays_and_its_target_is_written(tmp_path: Path) -> None:
    (tmp_path / "far").mkdir()
    for name in ("there", "not there yet"):
        link, target = tmp_path / f"link to {name}", tmp_path / "far" / name
        link.symlink_to(Path("far") / name)
        if name == "there":
            target.write_bytes(b"old")
        write_bytes(link, b"new")
        assert link.is_symlink()
        assert target.read_bytes() == b"new"


def test_devices_and_folders_are_not_replaced(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", tmp_path):
        with pytest.raises(OSError, match=f"{path} must be a file or not exist, got a folder or"):
            write_bytes(path, b"")
    assert stat.S_ISFIFO((tmp_path / "pipe").stat().st_mode)


def test_leftovers_of_the_dead_are_removed_and_those_of_the_living_are_not(tmp_path: Path) -> None:
    code = """
import sys
from pathlib import Path
from neural_complexity.files import replacing
with replacing(Path(sys.argv[1])) as file:
    print("open", flush=True)
    sys.stdin.read()
"""
    command = [sys.executable, "-c", code, str(tmp_path / "weights")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"open\n"
        (left,) = tmp_path.iterdir()
        assert left.name.endswith(PART)
        with replacing(tmp_path / "other"):  # of this process, which lives
            write_bytes(tmp_path / "third", b"")
            assert len(list(tmp_path.glob(f".*{PART}"))) == 2
        assert left.exists()
        process.send_signal(signal.SIGKILL)
    write_bytes(tmp_path / "third", b"")
    assert {path.name for path in tmp_path.iterdir()} == {"third", "other"}


def test_what_does_not_fit_is_named_and_gone(tmp_path: Path) -> None:
    path, before = tmp_path / "large", resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, before[1]))
    try:
        with pytest.raises(OSError, match=r"File too large: '.*large'"):
            write_bytes(path, b"x" * 2000)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert list(tmp_path.iterdir()) == []
