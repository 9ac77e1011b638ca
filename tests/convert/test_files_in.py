import io
import zipfile
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from neural_complexity.convert.files_in import read_file

ANY_NUMBER = st.floats(allow_nan=False, allow_infinity=False)


@pytest.fixture(scope="session")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("tables") / "table.csv"


@given(st.lists(st.tuples(ANY_NUMBER, st.integers(-(2**50), 2**50)), min_size=1, max_size=20))
def test_numbers_are_read_as_written(place: Path, rows: list[tuple[float, int]]) -> None:
    place.write_text("a, b ,1\n" + "".join(f"{x!r}, {n} ,cat \n\n" for x, n in rows))
    table = read_file(place)
    assert list(table.arrays) == ["a", "b", "1"]
    np.testing.assert_allclose(table.numbers(["b", "a"]), [(n, x) for x, n in rows], rtol=1e-14)
    assert set(table.arrays["1"]) == {"cat"}
    with pytest.raises(TypeError, match=r"column 1 of .* must hold numbers, got text: 'cat'"):
        table.numbers(["1"])
    with pytest.raises(ValueError, match="must have a column c, got a, b, 1"):
        table.numbers(["a", "c"])


def test_text_is_quoted_and_numbers_may_come_among_it(place: Path) -> None:
    place.write_text('\ufeffname,"a, b"\n"2",1\n"x, y",True\n', encoding="utf-8")
    table = read_file(place)
    assert table.arrays["name"].tolist() == ["2", "x, y"]
    with pytest.raises(TypeError, match=r"column name of .* got text: 'x, y'"):
        table.numbers(["name"])


def test_missing_values_are_kept_or_refused(place: Path) -> None:
    place.write_text("a,b\n1,2\n3,NA\n")
    table = read_file(place)
    assert table.frame(["b"]).isna().to_numpy().tolist() == [[False], [True]]
    assert table.complete("a").tolist() == [1, 3]
    sentence = "column b of .* must have no missing values, got 1 of 2, the first in line 3"
    with pytest.raises(ValueError, match=sentence):
        table.numbers(["a", "b"])


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ("", "at least one row"),
        ("a,b\n", "at least one row"),
        ("a,b\n1\n", "equally many cells in every line, got 1 of 2 in line 2"),
        ("a,b\n1,2\n\n3,\n4\n", "equally many cells in every line, got 1 of 2 in line 5"),
        ("a,b\n1,2,3\n", "equally many cells in every line"),
        ("a,b\n1,2\n1,2,3\n", "equally many cells in every line"),
        ("a,b\n1,2\n1,2,3\n".encode("utf-16").decode("latin-1"), "must "),
        ("1,2\n3,4\n5,6\n0.1,3\n", ""),
        ("0.1,2\n3,4\n", "must start with names of columns, got the number 0.1"),
        ("a,,b\n1,2,3\n", "must name every column"),
        ("a,b,a\n1,2,3\n", "must name every column once, got a twice"),
        ("a;b\n1;2\n", "must separate cells by commas"),
        ('a,b\n"1,2\n', "must "),
    ],
)
def test_every_mistake_in_a_table_is_one_sentence(place: Path, content: str, sentence: str) -> None:
    place.write_text(content)
    if not sentence:
        assert read_file(place).numbers(["2"]).tolist() == [[4.0], [6.0], [3.0]]
        return
    with pytest.raises(ValueError, match=sentence) as caught:
        read_file(place)
    assert "\n" not in str(caught.value)
    assert str(place) in str(caught.value)


@given(st.binary(max_size=300))
def test_random_bytes_are_a_table_or_refused(place: Path, content: bytes) -> None:
    place.write_bytes(content)
    place.with_suffix(".npz").write_bytes(content)
    try:
        table = read_file(place)
    except ValueError as error:
        assert " must " in str(error)  # noqa: PT017
        assert "\n" not in str(error)  # noqa: PT017
    else:
        assert len({len(column) for column in table.arrays.values()}) == 1
    with pytest.raises(ValueError, match="must be an npz file of plain arrays, got another"):
        read_file(place.with_suffix(".npz"))


def test_arrays_are_read_as_written(tmp_path: Path) -> None:
    np.savez_compressed(tmp_path / "a.npz", X=np.eye(3), y=np.array(["a", "b"]))
    found = read_file(tmp_path / "a.npz")
    assert np.array_equal(found["X"], np.eye(3))
    assert found["y"].tolist() == ["a", "b"]
    np.save(tmp_path / "a.npy", np.eye(3))
    (tmp_path / "a.npy").rename(tmp_path / "single.npz")
    with pytest.raises(ValueError, match=r"npz file of plain arrays, got another \(it is a single"):
        read_file(tmp_path / "single.npz")
    with pytest.raises(FileNotFoundError):
        read_file(tmp_path / "none.npz")


def test_columns_of_predictions_may_be_named_by_classes(place: Path) -> None:
    place.write_text("-1,0.0,1\n0.1,0.2,0.7\n")
    assert read_file(place, numbered=True).header() == ["-1", "0", "1"]
    with pytest.raises(ValueError, match="must start with names of columns, got the number -1"):
        read_file(place)
    place.write_text("0.1,0.2\n0.3,0.4\n")
    with pytest.raises(ValueError, match="must start with names of columns, got the number"):
        read_file(place, numbered=True)


def test_truth_values_may_be_missing(place: Path) -> None:
    place.write_text("a,b\nTrue, x \n,y\nFalse,z\n")
    frame = read_file(place).frame(["a", "b"])
    assert frame["a"].isna().tolist() == [False, True, False]
    assert frame["b"].tolist() == ["x", "y", "z"]


def test_arrays_are_read_when_they_are_asked_for_and_if_they_may_be_so_large(
    tmp_path: Path,
) -> None:
    path = tmp_path / "a.npz"
    np.savez_compressed(path, X=np.eye(3), large=np.zeros((1000, 1000)))
    found = read_file(path, max_memory=0.01)
    assert list(found.arrays) == ["X", "large"]
    assert found["X"].shape == (3, 3)
    sentence = r"a.npz must take at most 0.01 GB of memory \(--max-memory\), got one that takes 0.0"
    with pytest.raises(ValueError, match=sentence):
        found["large"]
    assert read_file(path)["large"].shape == (1000, 1000)
    # What a header says is not allocated: here it says a thousand times more.
    with zipfile.ZipFile(path, "w") as archive, archive.open("X.npy", "w") as member:
        about = {"descr": "<f8", "fortran_order": False, "shape": (10**6, 10**6)}
        np.lib.format.write_array_header_1_0(member, about)
    with pytest.raises(ValueError, match="must take at most 1 GB of memory"):
        read_file(path)["X"]


def test_tables_may_take_so_much_memory(place: Path, tmp_path: Path) -> None:
    place.write_text("a,b\n" + "1,2\n" * 1000)
    pd.DataFrame({"a": np.zeros(2000), "b": "x"}).to_parquet(tmp_path / "a.parquet")
    for path in (place, tmp_path / "a.parquet"):
        with pytest.raises(ValueError, match=f"{path.name} must take at most 1e-05 GB of memory"):
            read_file(path, max_memory=1e-5)
        assert len(read_file(path)["a"]) >= 1000


def test_a_cell_is_counted_with_all_its_copies(tmp_path: Path) -> None:
    # Reading this one was seen to take 1,049 MB, where 916 were expected.
    equal = pa.DictionaryArray.from_arrays(pa.array(np.zeros(10**7, np.int32)), pa.array([1.0]))
    pq.write_table(pa.table(dict.fromkeys("abc", equal)), tmp_path / "a.parquet")
    with pytest.raises(ValueError, match="must take at most 1 GB of memory"):
        read_file(tmp_path / "a.parquet")


def test_a_long_word_of_many_rows_is_kept_once(tmp_path: Path) -> None:
    path, words = tmp_path / "a.parquet", ["long " * 1000, None] * 1000
    for column in (words, pd.Categorical(words)):
        pd.DataFrame({"a": column}).to_parquet(path)
        found = read_file(path).arrays["a"]
        assert len({id(word) for word in found}) == 2
        assert found[0] == words[0]
        assert pd.isna(found[1])


def test_an_entry_that_is_hidden_in_a_comment_is_missed(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    np.savez(path, X=np.ones(3), y=np.ones(3))
    content = bytearray(path.read_bytes())
    content[content.index(b"PK\x01\x02") + 32] = 255  # the length of the first one's comment
    path.write_bytes(content)
    with zipfile.ZipFile(path) as archive:
        assert archive.namelist() == ["X.npy"]
    with pytest.raises(
        ValueError, match=r"a.npz must be an npz file .* \(1 of 2 arrays are there\)"
    ):
        read_file(path)


def test_an_entry_that_is_nowhere_names_the_file(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    np.savez(path, X=np.ones(3))
    content = bytearray(path.read_bytes())
    at = content.index(b"PK\x01\x02")
    content[at + 42 : at + 46] = b"\xff\xff\xff\xff"  # where the entry begins
    path.write_bytes(content)
    with pytest.raises(ValueError, match="a.npz must be an npz file of plain arrays, got another"):
        _ = read_file(path)["X"]


def test_archives_that_lost_their_directory_or_a_part_of_an_array_are_refused(
    tmp_path: Path,
) -> None:
    path = tmp_path / "a.npz"
    with zipfile.ZipFile(path, "w"):
        pass
    with pytest.raises(ValueError, match=r"a.npz must be an npz file .* \(it has no arrays\)"):
        read_file(path)
    member = io.BytesIO()
    np.save(member, np.ones(3))
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("X.npy", member.getvalue() + b"more")
    with pytest.raises(ValueError, match="X.npy is longer than it says"):
        _ = read_file(path)["X"]


def test_cells_of_lists_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pd.DataFrame({"x": [[1, 2], [3]]}).to_parquet(path)
    with pytest.raises(ValueError, match="a.parquet must be a parquet file, .*lists in its cells"):
        read_file(path)
