"""Archives good and bad, what is kept of them, and the preprocessing."""

import io
import os
import struct
import tracemalloc
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

import neural_complexity
from glyphs import draw, entries, glyphs, png, write_zip
from neural_complexity.tasks import image_datasets as datasets
from neural_complexity.tasks import omniglot_files as module
from neural_complexity.tasks.image_datasets import VARIABLE
from neural_complexity.tasks.images import Images
from neural_complexity.tasks.omniglot_files import omniglot, preprocess

STEM = "images_background"
ZIP = f"{STEM}.zip"
FIRST = f"{STEM}/Alphabet_00/character01/0001_01.png"


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datasets, "cache_folder", lambda: tmp_path / "cache")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "data"
    folder.mkdir()
    return folder


def read(folder: Path) -> Images:
    return omniglot("background", folder=folder, download=False)


def same(a: Images, b: Images) -> bool:
    return torch.equal(a.pixels, b.pixels) and torch.equal(a.labels, b.labels)


def pack(folder: Path, files: dict[str, bytes], method: int = zipfile.ZIP_DEFLATED) -> Path:
    with zipfile.ZipFile(folder / ZIP, "w", method) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return folder / ZIP


def refused(folder: Path, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence) as caught:
        read(folder)
    assert str(caught.value).startswith(f"{folder / ZIP} must")
    assert os.listdir(folder) == [ZIP]
    assert not (folder.parent / "cache").exists()


# Reading


@pytest.mark.parametrize("place", [".", "omniglot"])
@pytest.mark.parametrize("part", ["background", "evaluation"])
def test_drawings_are_read_in_order_by_alphabet_character_and_name(
    folder: Path, place: str, part: str
) -> None:
    files = list(entries(f"images_{part}", 13, 4).items())
    (folder / place).mkdir(exist_ok=True)
    with zipfile.ZipFile(folder / place / f"images_{part}.zip", "w") as archive:
        archive.writestr(f"images_{part}/", b"")
        for name, content in reversed(files):
            archive.writestr(name, content)
    images = omniglot(part, folder=folder, download=False)
    assert same(images, glyphs(13, 4))
    drawn = torch.from_numpy(draw(13, 4, 0)).flatten(0, 1)[:, None]
    exact = preprocess(drawn)
    assert (images(torch.arange(52)) - exact).abs().max() <= 0.502 / 255
    assert 0.01 < exact.mean() < 0.3  # ink is 1, and there is little of it


def test_the_precision_changes_no_pixel(folder: Path) -> None:
    found = []
    for i, dtype in enumerate((torch.float32, torch.float64)):
        torch.set_default_dtype(dtype)
        (folder / str(i)).mkdir()
        write_zip(folder / str(i) / ZIP, 12, 5)
        found.append(read(folder / str(i)))
    assert same(*found)


def test_drawings_of_other_kinds_of_png_are_the_same(folder: Path) -> None:
    files = entries(STEM, 2, 2)
    for mode in ("L", "RGB", "P", "RGBA"):
        for name, content in entries(STEM, 2, 2).items():
            file = io.BytesIO()
            Image.open(io.BytesIO(content)).convert(mode).save(file, format="PNG")
            files[name] = file.getvalue()
        pack(folder, files)
        assert same(read(folder), glyphs(2, 2))


def test_nothing_is_asked_of_the_network_when_the_file_is_there(folder: Path) -> None:
    write_zip(folder / ZIP, 2, 2)
    assert same(omniglot("background", folder=folder), glyphs(2, 2))


def test_a_missing_archive_is_named_with_its_place_and_address(folder: Path) -> None:
    sentence = rf"{ZIP} must be put into {folder}/omniglot, from https://raw.*/python/{ZIP}: "
    with pytest.raises(FileNotFoundError, match=sentence):
        read(folder)


def test_the_environment_says_where_to_look(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, str(folder))
    write_zip(folder / ZIP, 2, 2)
    assert same(omniglot("background"), glyphs(2, 2))


def test_there_are_two_parts(folder: Path) -> None:
    with pytest.raises(ValueError, match="part must be background or evaluation, got test"):
        omniglot("test", folder=folder)


# Hostile archives


@pytest.mark.parametrize(
    "name",
    [
        f"/{FIRST}",
        f"../{FIRST}",
        f"{STEM}/../../character01/x.png",
        f"{STEM}/../character01/x.png",
        f"{STEM}\\A\\character01\\x.png",
        f"C:/{FIRST}",
        f"{STEM}/C:/character01/x.png",
    ],
)
def test_names_that_leave_the_folder_are_refused(folder: Path, name: str) -> None:
    pack(folder, {**entries(STEM, 2, 2), name: png(draw(1, 1, 0)[0, 0])})
    refused(folder, rf"must hold {STEM}/ALPHABET/characterNN/DRAWING.png, got")


@pytest.mark.parametrize(
    "name",
    [
        "readme.txt",
        f"{STEM}/x.png",
        f"{STEM}/A/x.png",
        f"{STEM}/A/b/x.png",
        f"{STEM}/A/character01/x.jpg",
        f"{STEM}/A/character01/deep/x.png",
        "images_evaluation/A/character01/x.png",
    ],
)
def test_files_of_no_character_are_refused(folder: Path, name: str) -> None:
    pack(folder, {**entries(STEM, 2, 2), name: png(draw(1, 1, 0)[0, 0])})
    refused(folder, rf"must hold {STEM}/ALPHABET/characterNN/DRAWING.png, got '{name}'")


def test_unequal_numbers_of_drawings_are_refused(folder: Path) -> None:
    files = entries(STEM, 2, 3)
    del files[FIRST]
    pack(folder, files)
    refused(folder, r"equally many drawings of each character, got \[2, 3\]")


@pytest.mark.parametrize("files", [{}, {f"{STEM}/": b""}])
def test_an_archive_without_drawings_is_refused(folder: Path, files: dict[str, bytes]) -> None:
    pack(folder, files)
    refused(folder, "drawings of each character, got none")


@pytest.mark.parametrize("side", [104, 106, 1, 30_000])
def test_drawings_of_another_size_are_refused(folder: Path, side: int) -> None:
    files = entries(STEM, 2, 2)
    file = io.BytesIO()
    Image.new("1", (side, min(side, 200))).save(file, format="PNG")
    pack(folder, {**files, FIRST: file.getvalue()})
    refused(folder, rf"images of 105 x 105 pixels, got '{FIRST}' \({side} x {min(side, 200)} pix")


@pytest.mark.parametrize("content", [b"", b"GIF89a", b"x" * 500, png(draw(1, 1, 0)[0, 0])[:60]])
def test_drawings_that_are_no_png_are_refused(folder: Path, content: bytes) -> None:
    pack(folder, {**entries(STEM, 2, 2), FIRST: content})
    refused(folder, rf"must hold PNG images of 105 x 105 pixels, got '{FIRST}' \(.+\)")


def test_every_truncated_drawing_is_refused_or_the_same(folder: Path) -> None:
    whole = png(draw(1, 1, 0)[0, 0])
    for end in range(len(whole)):
        path = pack(folder, {FIRST: whole[:end]})
        try:
            pixels = module._read_archive(path, path.read_bytes())["pixels"]
        except ValueError as error:
            assert str(error).startswith(f"{path} must hold PNG images")  # noqa: PT017
        else:
            assert end >= len(whole) - 20  # only checksums and the end mark follow the pixels
            assert torch.equal(pixels, glyphs(1, 1).pixels)


def test_truncated_archives_are_refused(folder: Path) -> None:
    write_zip(folder / ZIP, 2, 2)
    whole = (folder / ZIP).read_bytes()
    for end in range(0, len(whole), 7):
        (folder / ZIP).write_bytes(whole[:end])
        refused(folder, "must be a whole zip archive, got damage")


@pytest.mark.parametrize("change", [0xFF, 0x01, 0x80])
def test_a_damaged_byte_anywhere_is_refused_or_harmless(folder: Path, change: int) -> None:
    write_zip(folder / ZIP, 2, 2)
    whole = bytearray((folder / ZIP).read_bytes())
    refusals = 0
    for place in range(len(whole)):
        whole[place] ^= change
        try:
            found = module._read_archive(folder / ZIP, bytes(whole))
            assert found["pixels"].shape[1:] == (1, 28, 28)
        except ValueError as error:
            refusals += 1
            assert str(error).startswith(f"{folder / ZIP} must")  # noqa: PT017
        whole[place] ^= change
    assert refusals > len(whole) / 2


def test_large_entries_are_refused_unread(folder: Path) -> None:
    path = pack(folder, {**entries(STEM, 2, 2), FIRST: bytes(30_000_000)})
    assert path.stat().st_size < 50_000
    tracemalloc.start()
    refused(folder, f"must hold PNG images of 105 x 105 pixels, got '{FIRST}'")
    assert tracemalloc.get_traced_memory()[1] < 2_000_000
    tracemalloc.stop()


def test_entries_that_lie_about_their_size_unpack_no_further(folder: Path) -> None:
    path = pack(folder, {FIRST: bytes(30_000_000)})
    size = struct.pack("<I", 30_000_000)
    content = path.read_bytes()
    assert content.count(size) == 2
    path.write_bytes(content.replace(size, struct.pack("<I", 900)))
    tracemalloc.start()
    refused(folder, f"must hold PNG images of 105 x 105 pixels, got '{FIRST}'")
    assert tracemalloc.get_traced_memory()[1] < 2_000_000
    tracemalloc.stop()


@pytest.mark.parametrize(
    ("limit", "value", "sentence"),
    [
        ("MAX_ENTRIES", 5, "must have at most 5 different files, got 6"),
        ("MAX_ARCHIVE", 99, "must have at most 99 bytes, got"),
    ],
)
def test_limits_hold(
    folder: Path, monkeypatch: pytest.MonkeyPatch, limit: str, value: int, sentence: str
) -> None:
    write_zip(folder / ZIP, 2, 3)
    monkeypatch.setattr(module, limit, value)
    refused(folder, sentence)


@pytest.mark.parametrize("method", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_other_compressions_are_refused(folder: Path, method: int) -> None:
    pack(folder, entries(STEM, 2, 2), method)
    refused(folder, "must be stored or deflated, got another method")


def test_encrypted_entries_are_refused(folder: Path) -> None:
    content = bytearray(pack(folder, entries(STEM, 1, 1)).read_bytes())
    content[content.index(b"PK\x01\x02") + 8] |= 1
    (folder / ZIP).write_bytes(content)
    refused(folder, rf"got '{FIRST}' \(.*encrypted")


def test_names_given_twice_are_refused(folder: Path) -> None:
    drawing = png(draw(1, 1, 0)[0, 0])
    path = pack(folder, {FIRST: drawing, FIRST.replace("_01", "_02"): drawing})
    path.write_bytes(path.read_bytes().replace(b"0001_02", b"0001_01"))
    refused(folder, "must have at most 200000 different files, got 2")


# The cache


def test_an_archive_is_read_once(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real, readings = module._read_archive, []

    def reading(archive: Path, content: bytes) -> dict[str, torch.Tensor]:
        readings.append(archive)
        return real(archive, content)

    monkeypatch.setattr(module, "_read_archive", reading)
    for seed in (0, 1):  # another archive of the same name is read anew
        write_zip(folder / ZIP, 3, 2, seed)
        for _ in range(2):
            assert same(read(folder), glyphs(3, 2, seed))
        assert len(readings) == seed + 1
    assert sorted(os.listdir(folder)) == [f"{STEM}-28x28-v1.safetensors", ZIP]


# Preprocessing


@given(
    height=st.integers(1, 120),
    width=st.integers(1, 120),
    leading=st.lists(st.integers(1, 3), max_size=2),
    kind=st.sampled_from([torch.uint8, torch.bool, torch.float16, torch.float32, torch.float64]),
)
def test_any_size_and_kind_gives_28_by_28(
    height: int, width: int, leading: list[int], kind: torch.dtype
) -> None:
    ground = torch.rand(*leading, 1, height, width)
    drawing = (255 * ground if kind == torch.uint8 else ground.round()).to(kind)
    ink = preprocess(drawing)
    assert ink.shape == (*leading, 1, 28, 28)
    assert ink.dtype == torch.get_default_dtype()
    assert ink.min() >= 0
    assert ink.max() <= 1
    # Each image for itself, turned with its drawing.
    one = (0,) * len(leading)
    torch.testing.assert_close(preprocess(drawing[one][0]), ink[one])
    torch.testing.assert_close(preprocess(drawing.flip(-1)), ink.flip(-1))
    torch.testing.assert_close(preprocess(drawing.mT), ink.mT)


@pytest.mark.parametrize("size", [28, 56, 84, 280])
def test_areas_are_averaged_and_inverted(size: int) -> None:
    ground = torch.rand(3, 1, size, size)
    step = size // 28
    areas = ground.unflatten(-1, (28, step)).unflatten(-3, (28, step))
    torch.testing.assert_close(preprocess(ground), 1 - areas.mean(dim=(-1, -3)))


def test_dark_is_one_and_light_is_zero() -> None:
    for light in (torch.tensor(255, dtype=torch.uint8), torch.tensor(True), torch.tensor(1.0)):
        assert (preprocess(light.expand(2, 40, 50)) == 0).all()
        assert (preprocess(torch.zeros_like(light).expand(2, 40, 50)) == 1).all()


def test_two_drawings_need_no_channel() -> None:
    ground = torch.rand(2, 40, 50)
    assert torch.equal(preprocess(ground), preprocess(ground[:, None]))


@pytest.mark.parametrize(
    ("images", "error", "sentence"),
    [
        (np.zeros((28, 28)), TypeError, "images must be a torch.Tensor, got ndarray"),
        (
            torch.zeros(28, 28, dtype=torch.int64),
            TypeError,
            "uint8 or floats from 0 to 1, got torch.int",
        ),
        (torch.zeros(28, 28, dtype=torch.complex64), TypeError, "got torch.complex64"),
        (torch.zeros(28), ValueError, r"\(..., height, width\) and not empty, got shape \(28,\)"),
        (torch.zeros(0, 28, 28), ValueError, r"not empty, got shape \(0, 28, 28\)"),
        (torch.full((28, 28), 255.0), ValueError, "values from 0 to 1, got 255 to 255"),
        (torch.full((28, 28), -0.1), ValueError, "values from 0 to 1, got -0.1 to -0.1"),
        (torch.full((28, 28), torch.nan), ValueError, "values from 0 to 1, got nan to nan"),
    ],
)
def test_images_of_another_kind_are_refused(
    images: torch.Tensor, error: type[Exception], sentence: str
) -> None:
    with pytest.raises(error, match=sentence):
        preprocess(images)


# The real archives, where there are any


def real_archive(part: str) -> Path | None:
    """Looks in the environment's data folder, then in data folders in and beside this checkout."""
    root = Path(neural_complexity.__file__).parents[2]
    folders = [root / "data", *sorted(root.parent.glob("*/data"))]
    if os.environ.get(VARIABLE):
        folders.insert(0, Path(os.environ[VARIABLE]))
    paths = [f / place / f"images_{part}.zip" for f in folders for place in (".", "omniglot")]
    return next((path for path in paths if path.is_file()), None)


@pytest.mark.slow
@pytest.mark.parametrize(("part", "characters"), [("background", 964), ("evaluation", 659)])
def test_the_real_archives_hold_twenty_drawings_of_each_character(
    folder: Path, part: str, characters: int
) -> None:
    archive = real_archive(part)
    if archive is None:
        pytest.skip(f"there is no images_{part}.zip; {VARIABLE} can name its folder")
    (folder / archive.name).symlink_to(archive)  # the cache stays out of the user's folder
    images = omniglot(part, folder=folder, download=False)
    assert images.classes == characters
    assert (images.counts == 20).all()
    assert images.pixels.shape == (20 * characters, 1, 28, 28)
    ink = images(torch.arange(len(images))).flatten(1)
    assert 0.05 < ink.mean() < 0.15
    assert ink.amax(dim=1).min() > 0.4  # nobody handed in a blank sheet
    assert len(images.pixels.unique(dim=0)) > 0.99 * len(images)


def test_an_entry_without_a_name_is_damage(tmp_path: Path) -> None:
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("a", b"")
    content = archive.getvalue()
    at = content.index(b"PK\x01\x02")
    # The name's length in the list of entries becomes 0: its byte is then taken for something else.
    content = content[: at + 28] + b"\0\0" + content[at + 30 :]
    (tmp_path / "images_background.zip").write_bytes(content)
    with pytest.raises(ValueError, match="images_background.zip must"):
        omniglot("background", folder=tmp_path, download=False)
