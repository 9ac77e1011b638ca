"""Files whole, damaged and hostile."""

import gzip
import io
import os
import struct
import tarfile
import tracemalloc
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scipy.io import savemat

from labelled import cifar10, cifar10_files, cifar10_tar, draw, expected, idx, svhn
from neural_complexity.tasks import formats
from neural_complexity.tasks.formats import (
    read_cifar10,
    read_cifar10_archive,
    read_idx,
    read_svhn,
)

Read = Callable[[Path], tuple[torch.Tensor, torch.Tensor]]
IMAGES, LABELS = draw(12, 7, 5)
COLOURS, TEN = draw(12, 3, 32, 32)


def images_of(path: Path) -> tuple[torch.Tensor, torch.Tensor]:
    labels = path.with_name("labels")
    labels.write_bytes(idx(LABELS))
    return read_idx(path, labels)


def labels_of(path: Path) -> tuple[torch.Tensor, torch.Tensor]:
    images = path.with_name("images")
    images.write_bytes(idx(IMAGES))
    return read_idx(images, path)


def archive_of(path: Path) -> tuple[torch.Tensor, torch.Tensor]:
    (pixels, labels), test = read_cifar10_archive(path)
    return torch.cat([pixels, test[0]]), torch.cat([labels, test[1]])


def small_archive() -> bytes:
    return cifar10_tar(cifar10_files(2))


READERS: dict[str, tuple[Read, Callable[[], bytes]]] = {
    "IDX images": (images_of, lambda: idx(IMAGES)),
    "IDX images, packed": (images_of, lambda: gzip.compress(idx(IMAGES))),
    "IDX labels": (labels_of, lambda: idx(LABELS)),
    "IDX labels, packed": (labels_of, lambda: gzip.compress(idx(LABELS))),
    "CIFAR-10": (read_cifar10, lambda: cifar10(COLOURS, TEN)),
    "CIFAR-10, archive": (archive_of, small_archive),
    "SVHN": (read_svhn, lambda: svhn(COLOURS, TEN, compressed=False)),
    "SVHN, compressed": (read_svhn, lambda: svhn(COLOURS, TEN)),
}


def variables(**changed: object) -> bytes:
    file = io.BytesIO()
    known = {"X": COLOURS.transpose(2, 3, 1, 0), "y": TEN[:, None] + 1}
    savemat(file, {k: v for k, v in {**known, **changed}.items() if v is not None})
    return file.getvalue()


def same(
    found: tuple[torch.Tensor, torch.Tensor], wanted: tuple[torch.Tensor, torch.Tensor]
) -> bool:
    return all(torch.equal(a, b) and a.dtype == b.dtype for a, b in zip(found, wanted, strict=True))


@pytest.fixture(scope="session")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file that tests write again and again."""
    return tmp_path_factory.mktemp("formats") / "file"


def refused(read: Read, path: Path, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence) as caught:
        read(path)
    assert str(caught.value).startswith(f"{path} must")
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
    assert same(read_idx(place, other), expected((images, labels)))


@given(st.integers(1, 30))
def test_cifar10_is_read_as_written(place: Path, P: int) -> None:
    written = draw(P, 3, 32, 32, seed=P)
    place.write_bytes(cifar10(*written))
    assert same(read_cifar10(place), expected(written))


@given(st.integers(1, 30), st.booleans())
def test_svhn_is_read_as_written(place: Path, P: int, compressed: bool) -> None:
    written = draw(P, 3, 32, 32, seed=P)
    place.write_bytes(svhn(*written, compressed))
    found = read_svhn(place)
    assert same(found, expected(written))
    assert found[0].is_contiguous()


@pytest.mark.parametrize("kind", ["uint8", "int32", "float64"])
@pytest.mark.parametrize("row", [False, True])
def test_labels_of_svhn_come_in_several_kinds(place: Path, kind: str, row: bool) -> None:
    y = np.where(TEN == 0, 10, TEN).astype(kind)
    y = y[None] if row else y[:, None]
    place.write_bytes(variables(y=y, more=np.eye(3)))
    assert same(read_svhn(place), expected((COLOURS, TEN)))


@pytest.mark.parametrize("kind", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_the_archive_gives_what_its_files_give(place: Path, kind: int) -> None:
    files = cifar10_files(3)
    more = {"cifar-10-batches-bin/readme.html": b"hello" * 300}
    if kind != tarfile.USTAR_FORMAT:
        more["ä" * 200] = b"a long name"
    place.write_bytes(cifar10_tar({**more, **dict(reversed(files.items()))}, kind))
    sets = [draw(3, 3, 32, 32, seed=i) for i in range(6)]
    train, test = read_cifar10_archive(place)
    assert same(train, expected(*sets[:5]))
    assert same(test, expected(sets[5]))


def test_pixels_can_be_written_to(place: Path) -> None:
    # PyTorch warns of tensors over memory for reading only.
    for read, content in READERS.values():
        place.write_bytes(content())
        pixels, labels = read(place)
        pixels.zero_()
        labels.zero_()


# Damage of all kinds


def valid(found: tuple[torch.Tensor, torch.Tensor]) -> bool:
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


WHOLE = {name: content() for name, (_, content) in READERS.items()}


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
    read, whole = READERS[name][0], WHOLE[name]
    refusals = []

    @settings(max_examples=120)
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


@pytest.mark.parametrize("name", ["SVHN", "IDX images, packed", "CIFAR-10, archive"])
@given(content=st.binary(max_size=3000))
def test_bytes_behind_a_right_header_are_refused(place: Path, name: str, content: bytes) -> None:
    read = READERS[name][0]
    start = WHOLE["SVHN"][:128] if name == "SVHN" else b""
    place.write_bytes(start + content if name == "SVHN" else gzip.compress(content, 1))
    with pytest.raises(ValueError, match=" must "):
        read(place)


@given(content=st.binary(max_size=300))
def test_variables_of_random_bytes_are_refused(place: Path, content: bytes) -> None:
    matrix = struct.pack("<II", 14, len(content)) + content
    packed = zlib.compress(matrix)
    place.write_bytes(WHOLE["SVHN"][:128] + struct.pack("<II", 15, len(packed)) + packed)
    refused(read_svhn, place, "must be a MATLAB 5 file with uint8 images X")


@pytest.mark.parametrize("packed", [False, True])
def test_any_byte_before_the_pixels_of_svhn_may_be_wrong(place: Path, packed: bool) -> None:
    whole = WHOLE["SVHN"]
    end = 136 + struct.unpack_from("<I", whole, 132)[0]
    results = []
    for at in range(124, 200):
        for value in (0, 1, 4, 9, 127, 255):
            content = bytearray(whole)
            content[at] = value
            if packed and at >= 136:  # whole to the unpacker
                body = zlib.compress(content[128:end], 1)
                content[128:end] = struct.pack("<II", 15, len(body)) + body
            place.write_bytes(content)
            try:
                results.append(valid(read_svhn(place)))
            except ValueError as error:
                assert str(error).startswith(f"{place} must")  # noqa: PT017
    assert all(results)
    assert 20 < len(results) < 300


# Damage of known kinds


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"", "IDX file of bytes with 3 axes, which starts with 00000803, got an empty file"),
        (idx(LABELS), "starts with 00000803, got 00000801"),
        (idx(IMAGES)[:10], "which starts with 00000803"),
        (idx(IMAGES)[:-1], "must hold 420 values as its header says, got 419"),
        (idx(IMAGES) + b"\0", "must hold 420 values as its header says, got more"),
        (idx(IMAGES)[:-20], "must hold 12 x 7 x 5 values .*room for 1 to 416"),
        (idx(IMAGES[:0]), "must hold 0 x 7 x 5 values"),
        (gzip.compress(idx(IMAGES)[:-1]), "must hold 420 values as its header says, got 419"),
        (gzip.compress(idx(IMAGES) + b"\0"), "must hold 420 values .*, got more"),
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
        (b"", "must consist of records of 3073 bytes, got 0 bytes"),
        (cifar10(COLOURS, TEN)[:-1], "must consist of records of 3073 bytes, got 36875 bytes"),
        (cifar10(COLOURS, TEN + 7), "must have labels 0 to 9, got 16"),
    ],
)
def test_wrong_records_get_one_sentence(place: Path, content: bytes, sentence: str) -> None:
    place.write_bytes(content)
    refused(read_cifar10, place, sentence)


def archive_with(change: Callable[[dict[str, bytes]], None]) -> bytes:
    files = cifar10_files(1)
    change(files)
    return cifar10_tar(files)


FIRST = "cifar-10-batches-bin/data_batch_1.bin"


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda files: files.pop(FIRST), "must hold .*, got none of data_batch_1.bin"),
        (lambda files: files.update({FIRST: b"short"}), "records of 3073 bytes, got 5 bytes"),
        (lambda files: files.update({"test_batch.bin": bytes(3073)}), "got test_batch.bin again"),
        (
            lambda files: files.update({"../../data_batch_1.bin": files.pop(FIRST)}),
            "got none of data_batch_1.bin",
        ),
    ],
)
def test_wrong_archives_get_one_sentence(
    place: Path, change: Callable[[dict[str, bytes]], None], sentence: str
) -> None:
    place.write_bytes(archive_with(change))
    refused(archive_of, place, sentence)


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE])
def test_links_in_an_archive_are_not_followed(place: Path, kind: bytes) -> None:
    secret = place.with_name("secret")
    secret.write_bytes(cifar10(COLOURS, TEN))
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w:gz") as archive:
        for name, content in cifar10_files(1).items():
            entry = tarfile.TarInfo(name)
            if name == FIRST:
                entry.type, entry.linkname = kind, str(secret)
                archive.addfile(entry)
            else:
                entry.size = len(content)
                archive.addfile(entry, io.BytesIO(content))
    place.write_bytes(file.getvalue())
    before = sorted(os.listdir(place.parent))
    refused(archive_of, place, "got none of data_batch_1.bin")
    assert sorted(os.listdir(place.parent)) == before


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"", r"got another or a damaged one \(another header\)"),
        (b"\x89HDF\r\n\x1a\n" + bytes(600), r"\(another header\)"),
        (variables()[:-1], r"\(a file that was cut\)"),
        (variables()[:128], r"\(variables of other names\)"),
        (variables(X=None), r"\(variables y\)"),
        (variables(X=np.zeros((32, 32, 3, 12))), r"\(X of float64, \(32, 32, 3, 12\)"),
        (variables(X=np.zeros((28, 28, 3, 12), "u1")), r"\(X of uint8, \(28, 28, 3, 12\)"),
        (variables(X=np.array([{}] * 3, object)), r"\(X of another kind, \(1, 3\)\)"),
        (variables(X="text"), r"\(X of another kind, \(1, 4\)\)"),
        (variables(y=TEN[:5, None]), r"and y, \(5, 1\)\)"),
        (variables(y=TEN[:, None] * 1j), r"\(y of another kind, \(12, 1\)\)"),
        (variables(y=TEN.reshape(3, 4)), r"and y, \(3, 4\)\)"),
        (variables(more=np.eye(3)) + variables()[128:], r"\(X of another kind, "),
        (variables(y=TEN[:, None]), "must have labels 1 to 10, got 0 to 9"),
        (variables(y=TEN[:, None] + 1.5), "must have labels 1 to 10, got 1.5 to 10.5"),
        (variables(y=np.full((12, 1), np.nan)), "must have labels 1 to 10, got nan to nan"),
    ],
)
def test_wrong_variables_get_one_sentence(place: Path, content: bytes, sentence: str) -> None:
    place.write_bytes(content)
    refused(read_svhn, place, sentence)


def test_unknown_kinds_of_numbers_are_refused(place: Path) -> None:
    # The byte that makes SciPy's reader crash the process.
    for kind in range(256):
        content = bytearray(WHOLE["SVHN"])
        at = content.index(struct.pack("<II", 2, COLOURS.nbytes))
        content[at] = kind
        place.write_bytes(content)
        if kind == 2:
            assert valid(read_svhn(place))
        else:
            refused(read_svhn, place, "must be a MATLAB 5 file with uint8 images X")


def test_a_missing_file_is_no_damage(tmp_path: Path) -> None:
    for read in (read_cifar10, read_cifar10_archive, read_svhn):
        with pytest.raises(FileNotFoundError):
            read(tmp_path / "none")
    with pytest.raises(FileNotFoundError):
        read_idx(tmp_path / "none", tmp_path / "none")


# Memory


def peak(read: Read, path: Path, sentence: str | None = None) -> int:
    """Gives the most bytes taken at once while reading, or refusing, a file."""
    tracemalloc.start()
    try:
        if sentence is None:
            read(path)
        else:
            refused(read, path, sentence)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def mat_of(kind: int, *content: bytes) -> bytes:
    body = b"".join(content)
    return WHOLE["SVHN"][:128] + struct.pack("<II", kind, len(body)) + body


HUGE = struct.pack(">HBB3I", 0, 8, 3, 1 << 31, 28, 28)
BOMBS: dict[str, tuple[Read, Callable[[], bytes], str]] = {
    "IDX header": (images_of, lambda: HUGE + bytes(99), "must hold 2147483648 x 28 x 28 values"),
    "IDX header, packed": (
        images_of,
        lambda: gzip.compress(HUGE + bytes(99)),
        "must hold 2147483648 x 28 x 28 values",
    ),
    "IDX, more than the header says": (
        images_of,
        lambda: gzip.compress(idx(IMAGES) + bytes(60_000_000), 9),
        "must hold 420 values as its header says, got more",
    ),
    "CIFAR-10, a large file beside": (
        archive_of,
        lambda: cifar10_tar({"x": bytes(60_000_000)}),
        "got none of data_batch_1.bin",
    ),
    "CIFAR-10, a large name": (
        archive_of,
        lambda: cifar10_tar({"x" * 30_000_000: b""}),
        "got none of data_batch_1.bin",
    ),
    "CIFAR-10, no archive": (
        archive_of,
        lambda: gzip.compress(b"x" * 60_000_000),
        "must be a tar archive packed by gzip",
    ),
    "CIFAR-10, zeros": (
        archive_of,
        lambda: gzip.compress(bytes(60_000_000)),
        "got none of data_batch_1.bin",
    ),
    "SVHN, more than the variable says": (
        read_svhn,
        lambda: mat_of(15, zlib.compress(struct.pack("<II", 14, 64) + bytes(60_000_000))),
        "a variable of another size than it says",
    ),
    "SVHN, less than the variable says": (
        read_svhn,
        lambda: mat_of(15, zlib.compress(struct.pack("<II", 14, 1 << 31) + bytes(100_000))),
        "a variable of another size than it says",
    ),
    "SVHN, a large length": (
        read_svhn,
        lambda: WHOLE["SVHN"][:128] + struct.pack("<II", 14, 0xFFFFFFF0) + bytes(99),
        "a file that was cut",
    ),
}


@pytest.mark.parametrize("name", BOMBS)
def test_bombs_do_not_go_off(place: Path, name: str) -> None:
    read, content, sentence = BOMBS[name]
    place.write_bytes(content())
    assert peak(read, place, sentence) < 8_000_000


def test_hostile_dimensions_take_no_memory(place: Path) -> None:
    # A cell array, a struct, numbers and text of 2^30 elements, none of which is there.
    for kind in (1, 2, 4, 5, 6, 9, 16):
        flags = struct.pack("<IIII", 6, 8, kind, 0)
        sizes = struct.pack("<IIiiii", 5, 16, 32, 32, 3, 1 << 20)
        name = struct.pack("<HH4s", 1, 1, b"X")
        body = flags + sizes + name + struct.pack("<II", 2, 1 << 30)
        place.write_bytes(mat_of(14, body))
        assert peak(read_svhn, place, "must be a MATLAB 5 file with") < 1_000_000


@pytest.mark.parametrize("packed", [False, True])
def test_reading_takes_twice_the_content_at_most(place: Path, packed: bool) -> None:
    images, labels = draw(20_000, 28, 28)
    colours, ten = draw(5_000, 3, 32, 32)
    cases: list[tuple[Read, bytes, int]] = [
        (lambda path: read_idx(path, path.with_name("y")), idx(images), images.nbytes),
        (read_svhn, svhn(colours, ten, packed), colours.nbytes),
        (read_cifar10, cifar10(colours, ten), colours.nbytes),
    ]
    place.with_name("y").write_bytes(idx(labels))
    for read, content, size in cases:
        if packed and content[:2] == b"\0\0":
            content = gzip.compress(content, 1)  # noqa: PLW2901
        place.write_bytes(content)
        assert peak(read, place) < 2.2 * size + 2_000_000


@pytest.mark.parametrize("name", ["IDX images, packed", "CIFAR-10, archive", "SVHN, compressed"])
def test_packed_content_has_a_limit(
    place: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(formats, "MAX_UNPACKED", 400)
    place.write_bytes(WHOLE[name])
    refused(READERS[name][0], place, "must hold|another size than it says")
