"""Files whole, damaged and hostile."""

import gzip
import struct
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from labelled import cifar10, cifar10_files, cifar10_tar, draw, expected, idx, svhn
from neural_complexity.tasks.formats import Part, read_cifar10, read_idx, read_svhn

Read = Callable[[Path], Part]
IMAGES, LABELS = draw(12, 7, 5)
COLOURS, TEN = draw(12, 3, 32, 32)


def images_of(path: Path) -> Part:
    labels = path.with_name("labels")
    labels.write_bytes(idx(LABELS))
    return read_idx([path, labels])[0]


def labels_of(path: Path) -> Part:
    images = path.with_name("images")
    images.write_bytes(idx(IMAGES))
    return read_idx([images, path])[0]


def records_of(path: Path) -> Part:
    for name, content in cifar10_files(2).items():
        path.with_name(Path(name).name).write_bytes(content)
    return read_cifar10(path.replace(path.with_name("test_batch.bin")))[1]


# The formats that are read from any file; the others are read if their checksum is known.
READERS: dict[str, tuple[Read, bytes]] = {
    "IDX images": (images_of, idx(IMAGES)),
    "IDX images, packed": (images_of, gzip.compress(idx(IMAGES))),
    "IDX labels": (labels_of, idx(LABELS)),
    "IDX labels, packed": (labels_of, gzip.compress(idx(LABELS))),
    "CIFAR-10": (records_of, cifar10(COLOURS, TEN)),
}


def same(found: Part, wanted: Part) -> bool:
    return all(torch.equal(a, b) and a.dtype == b.dtype for a, b in zip(found, wanted, strict=True))


@pytest.fixture(scope="session")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file that tests write again and again."""
    return tmp_path_factory.mktemp("formats") / "file"


def refused(read: Read, path: Path, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence) as caught:
        read(path)
    assert str(caught.value).startswith(f"{path.parent}/")
    assert " must " in str(caught.value)
    assert "\n" not in str(caught.value)


# Round trips


@given(st.integers(1, 30), st.integers(1, 9), st.integers(1, 9), st.booleans(), st.booleans())
def test_idx_files_are_read_as_written(
    place: Path, P: int, height: int, width: int, packed: bool, both: bool
) -> None:
    images, labels = draw(P, height, width, seed=P)
    other = place.with_name("other")
    place.write_bytes(gzip.compress(idx(images)) if packed else idx(images))
    other.write_bytes(gzip.compress(idx(labels)) if both else idx(labels))
    (found,) = read_idx([place, other])
    assert same(found, expected((images, labels)))


@pytest.mark.parametrize("packed", [False, True])
def test_cifar10_is_read_from_its_files_and_from_their_archive(
    tmp_path: Path, packed: bool
) -> None:
    files = cifar10_files(3)
    path = tmp_path / ("cifar-10-binary.tar.gz" if packed else "test_batch.bin")
    if packed:
        more = {"cifar-10-batches-bin/readme.html": b"hello" * 300}
        path.write_bytes(cifar10_tar({**more, **dict(reversed(files.items()))}))
    else:
        for name, content in files.items():
            (tmp_path / Path(name).name).write_bytes(content)
    before = sorted(tmp_path.iterdir())
    train, test = read_cifar10(path)
    sets = [draw(3, 3, 32, 32, seed=i) for i in range(6)]
    assert same(train, expected(*sets[:5]))
    assert same(test, expected(sets[5]))
    assert sorted(tmp_path.iterdir()) == before


@given(st.integers(1, 30), st.booleans())
def test_svhn_is_read_as_written(place: Path, P: int, compressed: bool) -> None:
    written = draw(P, 3, 32, 32, seed=P)
    place.write_bytes(svhn(*written, compressed))
    found = read_svhn(place)
    assert same(found, expected(written))
    assert found[0].is_contiguous()


def test_pixels_can_be_written_to(place: Path) -> None:
    # PyTorch warns of tensors over memory for reading only.
    svhn_file: tuple[Read, bytes] = (read_svhn, svhn(COLOURS, TEN))
    for read, content in (*READERS.values(), svhn_file):
        place.write_bytes(content)
        pixels, labels = read(place)
        pixels.zero_()
        labels.zero_()


# Damage of all kinds


def valid(found: Part) -> bool:
    pixels, labels = found
    return (
        pixels.dtype == torch.uint8
        and labels.dtype == torch.int64
        and pixels.ndim == 4
        and pixels.numel() > 0
        and labels.shape == pixels.shape[:1]
        and int(labels.min()) >= 0
        and int(labels.max()) < 10
    )


@st.composite
def damaged(draw: st.DrawFn, whole: bytes) -> bytes:
    """Cuts, changes, inserts and appends; the first bytes, where headers are, more often."""
    content = bytearray(whole)
    for _ in range(draw(st.integers(1, 3))):
        most = draw(st.sampled_from([16, 200, len(content)]))
        at = draw(st.integers(0, max(0, min(most, len(content)) - 1)))
        match draw(st.sampled_from(["cut", "bytes", "bit", "insert", "append", "drop"])):
            case "cut":
                del content[at:]
            case "bytes":
                other = draw(st.binary(min_size=1, max_size=8))
                content[at : at + len(other)] = other
            case "bit" if content:
                content[at] ^= 1 << draw(st.integers(0, 7))
            case "insert":
                content[at:at] = draw(st.binary(min_size=1, max_size=40))
            case "append":
                content += draw(st.binary(min_size=1, max_size=600))
            case "drop":
                del content[at : at + draw(st.integers(1, 600))]
    return bytes(content)


@pytest.mark.parametrize("name", READERS)
def test_damaged_files_are_refused_or_valid(place: Path, name: str) -> None:
    read, whole = READERS[name]
    refusals = []

    @settings(max_examples=100)
    @given(damaged(whole))
    @example(b"")
    @example(whole[:-1])
    @example(whole + b"\1")
    @example(b"\1" + whole)
    def check(content: bytes) -> None:
        place.write_bytes(content)
        try:
            assert valid(read(place))
        except ValueError as error:
            refusals.append(str(error))
            assert " must " in str(error)  # noqa: PT017
            assert str(place.parent) in str(error)  # noqa: PT017

    check()
    assert len(refusals) > 20


@pytest.mark.parametrize("name", READERS)
def test_random_bytes_are_refused(place: Path, name: str) -> None:
    read = READERS[name][0]

    @given(st.binary(max_size=2000))
    def check(content: bytes) -> None:
        place.write_bytes(content)
        with pytest.raises(ValueError, match=r"^/.* must "):
            read(place)

    check()


# Damage of known kinds


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"", "IDX file of bytes with 3 axes, which starts with 00000803, got an empty file"),
        (idx(LABELS), "starts with 00000803, got 00000801"),
        (idx(IMAGES)[:10], "which starts with 00000803"),
        (idx(IMAGES)[:-1], "must hold 12 x 7 x 5 values as its header says, got fewer"),
        (idx(IMAGES) + b"\0", "must hold 12 x 7 x 5 values as its header says, got more"),
        (idx(IMAGES[:0]), "must hold 0 x 7 x 5 values"),
        (gzip.compress(idx(IMAGES)[:-1]), "values as its header says, got fewer"),
        (gzip.compress(idx(IMAGES) + b"\0"), "values as its header says, got more"),
        (gzip.compress(idx(IMAGES))[:-3], "must be a whole gzip file, got a damaged one"),
        (gzip.compress(idx(IMAGES)) + b"more", "must be a whole gzip file, got a damaged one"),
    ],
)
def test_wrong_images_get_one_sentence(place: Path, content: bytes, sentence: str) -> None:
    place.write_bytes(content)
    refused(images_of, place, sentence)


@pytest.mark.parametrize(
    ("labels", "sentence"),
    [
        (LABELS[:-1], "must hold a label for each of the 12 images, got 11"),
        (LABELS + 1, "must have labels 0 to 9, got 10"),
    ],
)
def test_wrong_labels_get_one_sentence(place: Path, labels: np.ndarray, sentence: str) -> None:
    place.write_bytes(idx(labels))
    refused(labels_of, place, sentence)


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"", "must be records of 3073 bytes, got 0 bytes"),
        (cifar10(COLOURS, TEN)[:-1], "must be records of 3073 bytes, got 36875 bytes"),
        (cifar10(COLOURS, TEN + 7), "must have labels 0 to 9, got 16"),
    ],
)
def test_wrong_records_get_one_sentence(place: Path, content: bytes, sentence: str) -> None:
    place.write_bytes(content)
    refused(records_of, place, sentence)


def test_a_missing_file_is_no_damage(tmp_path: Path) -> None:
    for read in (read_cifar10, read_svhn):
        with pytest.raises(FileNotFoundError):
            read(tmp_path / "none")
    with pytest.raises(FileNotFoundError):
        read_idx([tmp_path / "none"] * 2)


# Memory


HUGE = struct.pack(">HBB3I", 0, 8, 3, 1 << 31, 28, 28) + bytes(99)


@pytest.mark.parametrize(
    "content",
    [HUGE, gzip.compress(HUGE), gzip.compress(idx(IMAGES) + bytes(60_000_000), 9)],
    ids=["header", "packed header", "more than the header says"],
)
def test_bombs_do_not_go_off(place: Path, content: bytes) -> None:
    place.write_bytes(content)
    tracemalloc.start()
    try:
        refused(images_of, place, "values as its header says, got")
        assert tracemalloc.get_traced_memory()[1] < 8_000_000
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("packed", [False, True])
def test_reading_takes_twice_the_content_at_most(place: Path, packed: bool) -> None:
    images, labels = draw(20_000, 28, 28)
    place.write_bytes(gzip.compress(idx(images), 1) if packed else idx(images))
    place.with_name("y").write_bytes(idx(labels))
    tracemalloc.start()
    try:
        read_idx([place, place.with_name("y")])
        assert tracemalloc.get_traced_memory()[1] < 2.2 * images.nbytes + 2_000_000
    finally:
        tracemalloc.stop()
