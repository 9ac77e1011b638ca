import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from numpy.typing import NDArray
from sklearn.compose import make_column_transformer
from sklearn.ensemble import RandomForestClassifier
from sklearn.model_selection import cross_val_predict
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder

from neural_complexity.assessment.assess import assess_predictions
from neural_complexity.assessment.from_files import _columns, assess_files
from neural_complexity.assessment.model_files import ModelFiles
from neural_complexity.assessment.result import Assessment
from neural_complexity.cli import main
from neural_complexity.convert.files_in import File
from neural_complexity.model.card import Card
from neural_complexity.model.network import NeuralComplexity

pytestmark = pytest.mark.usefixtures("single_precision")

SMALL: dict[str, Any] = {"width": 8, "heads": 2, "encoder_layers": 1, "decoder_layers": 1}
M, N = 12, 5
NAMES = ["cat", "dog", "eel"]


class Files:
    """A model's points and predictions, in memory and as files of any kind."""

    def __init__(self, folder: Path, *, labels: bool) -> None:
        g = np.random.default_rng(0)
        self.folder = folder
        self.X, self.Z = g.normal(size=(M, 2)), g.normal(size=(N, 2))
        self.y: NDArray[Any] = g.integers(3, size=M) if labels else g.normal(size=M)
        C = 3 if labels else 1
        self.H, self.G = g.normal(size=(M, C)), g.normal(size=(N, C))
        torch.manual_seed(0)
        self.nc = (
            NeuralComplexity(2, 3, loss="cross_entropy", **SMALL)
            if labels
            else NeuralComplexity(2, 1, **SMALL)
        )
        self.nc.save(folder / "nc.safetensors")

    def expected(self, **options: Any) -> Assessment:
        return assess_predictions(self.nc, self.X, self.y, self.H, self.Z, self.G, **options)

    def csv(self, name: str, header: str, *columns: Any) -> Path:
        rows = zip(*(np.asarray(column).tolist() for column in columns), strict=True)
        lines = [header, *(",".join(str(cell) for cell in row) for row in rows)]
        path = self.folder / name
        path.write_text("\n".join(lines) + "\n")
        return path

    def usual(self) -> dict[str, Any]:
        """Writes the three files of the layout."""
        both = np.concatenate([self.H, self.G])
        header = ",".join(f"h{i}" for i in range(both.shape[1]))
        return {
            "train": self.csv("train.csv", "a,b,y", *self.X.T, self.y),
            "test": self.csv("test.csv", "b,a", self.Z[:, 1], self.Z[:, 0]),
            "predictions": self.csv("preds.csv", header, *both.T),
        }

    def ask(self, **options: Any) -> list[str]:
        given = {"nc": self.folder / "nc.safetensors", **self.usual(), **options}
        words = ["assess"]
        for name, value in given.items():
            if value is not None:
                words += [f"--{name.replace('_', '-')}", *map(str, np.atleast_1d(value).tolist())]
        return words


@pytest.fixture
def labels(tmp_path: Path) -> Files:
    return Files(tmp_path, labels=True)


@pytest.fixture
def real(tmp_path: Path) -> Files:
    return Files(tmp_path, labels=False)


def ask(files: Files, **given: Any) -> tuple[Assessment, list[str]]:
    return assess_files(files.nc, ModelFiles(**given), method="conformal")


def same(found: tuple[Assessment, list[str]], expected: Assessment) -> None:
    np.testing.assert_allclose(found[0].points, expected.points, rtol=1e-5)
    assert found[0].gap == pytest.approx(expected.gap, rel=1e-4, abs=1e-6)


def test_the_layout_is_read_as_it_is_documented(labels: Files, real: Files) -> None:
    for files in (labels, real):
        usual = files.usual()
        same(ask(files, **usual), files.expected())
        two: dict[str, Any] = {
            "predictions_train": files.csv(
                "tr.csv", "0,1,2"[: 2 * files.H.shape[1] - 1], *files.H.T
            ),
            "predictions": files.csv("te.csv", "0,1,2"[: 2 * files.H.shape[1] - 1], *files.G.T),
        }
        same(ask(files, **{**usual, **two}), files.expected())
        first = files.csv("first.csv", "y,a,b", files.y, *files.X.T)
        same(ask(files, **{**usual, "train": first}, target=("y",)), files.expected())
        looked = files.csv("looked.csv", "a,b,y", *files.Z.T, np.zeros(N))
        found = ask(files, **{**usual, "test": looked})
        same(found, files.expected())
        assert found[1] == [f"column y of {looked} is not looked at"]


def test_npz_and_parquet_say_the_same(labels: Files) -> None:
    arrays: dict[str, Any] = {
        name: labels.folder / f"{name}.npz" for name in ("train", "test", "predictions")
    }
    np.savez(arrays["train"], X=labels.X, y=labels.y)
    np.savez(arrays["test"], X=labels.Z, y=np.zeros(N))
    np.savez(arrays["predictions"], H_tr=labels.H, H_te=labels.G)
    same(ask(labels, **arrays), labels.expected())
    import pandas

    frames = {
        "train": pandas.DataFrame({"a": labels.X[:, 0], "b": labels.X[:, 1], "y": labels.y}),
        "test": pandas.DataFrame(labels.Z, columns=["a", "b"]),
        "predictions": pandas.DataFrame(np.concatenate([labels.H, labels.G])).rename(columns=str),
    }
    tables: dict[str, Any] = {name: labels.folder / f"{name}.parquet" for name in frames}
    for name, frame in frames.items():
        frame.to_parquet(tables[name])
    same(ask(labels, **tables), labels.expected())
    frames["train"].loc[3, "a"] = np.nan
    frames["train"].to_parquet(tables["train"])
    with pytest.raises(ValueError, match="column a of .* must have no missing values, got 1 of 12"):
        ask(labels, **tables)
    tables["train"].write_bytes(b"PAR1 but no more")
    with pytest.raises(ValueError, match="must be a parquet file, got a damaged one"):
        ask(labels, **tables)


def test_parquet_without_its_extra_is_told(labels: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    path = labels.folder / "train.parquet"
    path.touch()
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ValueError, match=r"pip install 'neural-complexity\[tables\]'"):
        ask(labels, **{**labels.usual(), "train": path})


def test_a_header_names_the_classes_in_any_order(labels: Files) -> None:
    usual, order = labels.usual(), [2, 0, 1]
    both = np.concatenate([labels.H, labels.G])[:, order]
    usual["predictions"] = labels.csv("named.csv", "2,0,1", *both.T)
    same(ask(labels, **usual), labels.expected())
    usual["train"] = labels.csv("text.csv", "a,b,y", *labels.X.T, np.array(NAMES)[labels.y])
    header = ",".join(NAMES[i] for i in order)
    usual["predictions"] = labels.csv("named.csv", header, *both.T)
    expected = labels.expected()
    labels.nc.card = Card(classes=tuple(NAMES))
    same(ask(labels, **usual), expected)
    shares = np.exp(both) / np.exp(both).sum(axis=1, keepdims=True)
    usual["predictions"] = labels.csv("shares.csv", header, *shares.T)
    same(ask(labels, **usual, probabilities=True), expected)
    usual["predictions"] = labels.csv("order.csv", "p,q,r", *both[:, [1, 2, 0]].T)
    same(ask(labels, **usual), expected)


def test_a_class_that_nc_does_not_know_is_told(labels: Files) -> None:
    usual, order = labels.usual(), [1, 0, 2]
    both = np.concatenate([labels.H, labels.G])
    labels.y = labels.y % 2
    usual["train"] = labels.csv("text.csv", "a,b,y", *labels.X.T, np.array(NAMES)[labels.y])
    labels.nc.card = Card(classes=tuple(NAMES))
    usual["predictions"] = labels.csv("named.csv", "dog,cat,cow", *both[:, order].T)
    with pytest.raises(ValueError, match="the model's classes must hold .*, got 'cow'"):
        ask(labels, **usual)
    usual["predictions"] = labels.csv("named.csv", "dog,cat,eel", *both[:, order].T)
    expected = ask(labels, **usual)[0]
    # Numbers as names of classes: whole ones may be written with a point, or counted from 1.
    for first, classes in ((0, [0.0, 1.0, 2.0]), (1, [1, 2, 3])):
        labels.nc.card = Card(classes=tuple(classes))
        usual["train"] = labels.csv("numbers.csv", "a,b,y", *labels.X.T, labels.y + first)
        usual["predictions"] = labels.csv("counted.csv", "0,1,2", *both.T)
        same(ask(labels, **usual), expected)


def test_the_command_tells_and_writes_what_it_found(
    labels: Files, capsys: pytest.CaptureFixture[str]
) -> None:
    page, data = labels.folder / "report.html", labels.folder / "all.json"
    assert main(labels.ask(out=page)) == 0
    told = capsys.readouterr()
    assert told.out.strip() == repr(labels.expected())
    assert told.err == ""
    assert "data:image/png;base64," in page.read_text()
    looked = labels.csv("looked.csv", "a,b,y", *labels.Z.T, np.zeros(N))
    assert main(labels.ask(out=data, test=looked)) == 0
    assert "note: column y of" in capsys.readouterr().err
    assert json.loads(data.read_text())["gap"] == pytest.approx(labels.expected().gap, rel=1e-4)
    with pytest.raises(SystemExit) as stopped:
        main(["assess", "--help"])
    assert stopped.value.code == 0
    assert "One row for each training row, in order" in capsys.readouterr().out


Change = Callable[[Files], dict[str, Any]]
MISTAKES: dict[str, Change] = {
    "gone.csv must be a file, got no such file": lambda f: {"train": f.folder / "gone.csv"},
    "nowhere.safetensors must be a safetensors file, got no such": lambda f: {
        "nc": f.folder / "nowhere.safetensors"
    },
    "nc must be a safetensors file or one of": lambda _: {"nc": "cosine"},
    "must end in .csv, .parquet, .npz, got .xlsx": lambda f: {"test": f.folder / "a.xlsx"},
    "must have a column z, got a, b, y": lambda _: {"target": "z"},
    "other.csv must have a column b, got a, c": lambda f: {
        "test": f.csv("other.csv", "a,c", *f.Z.T)
    },
    "got others: id": lambda f: {"test": f.csv("t.csv", "a,b,id", *f.Z.T, np.arange(N))},
    "--target must be one array of": lambda f: {
        "train": npz(f, "t.npz", X=f.X, y=f.y),
        "target": ["y", "z"],
    },
    "must have the features of the training file, got others: c, d": lambda f: {
        "test": f.csv("test2.csv", "a,b,c,d", *f.Z.T, *f.Z.T)
    },
    "must have 12 + 5 rows, one for each training row followed": lambda f: {
        "predictions": f.csv("few.csv", "p,q,r", *f.H.T)
    },
    "tr.csv must have 12 rows, one for each training row, got 5": lambda f: {
        "predictions_train": f.csv("tr.csv", "p,q,r", *f.G.T),
        "predictions": f.csv("te.csv", "p,q,r", *f.G.T),
    },
    "must have the same columns": lambda f: {
        "predictions_train": f.csv("tr.csv", "p,q,s", *f.H.T),
        "predictions": f.csv("te.csv", "p,q,r", *f.G.T),
    },
    "column b of": lambda f: {"train": f.csv("t.csv", "a,b,y", f.X[:, 0], ["x"] * M, f.y)},
    "must have no missing values, got 12 of 12, the first in line 2": lambda f: {
        "train": f.csv("t.csv", "a,b,y", f.X[:, 0], [""] * M, f.y)
    },
    "must be finite, got NaN or infinity at 12 of 12": lambda f: {
        "train": f.csv("t.csv", "a,b,y", f.X[:, 0], ["inf"] * M, f.y)
    },
    "must start with names of columns, got the number 0.5": lambda f: {
        "test": f.csv("t.csv", "0.5,1.5", *f.Z.T)
    },
    "must name every column once, got a twice": lambda f: {"test": f.csv("t.csv", "a,a", *f.Z.T)},
    "to_csv(index=False)": lambda f: {"test": f.csv("t.csv", ",a,b", np.arange(N), *f.Z.T)},
    "must have equally many cells in every line, got 2 of 3": lambda f: {
        "test": f.csv("t.csv", "a,b,c", *f.Z.T)
    },
    "must separate cells by commas": lambda f: {"test": f.csv("t.csv", "a;b", f.Z[:, 0])},
    "must have a header and at least one row": lambda f: {"test": f.csv("t.csv", "a,b", [], [])},
    "must be a CSV file in UTF-8": lambda f: {"test": binary(f, "t.csv", b"\xff\xfe\x00a,b")},
    "must be an npz file of plain arrays": lambda f: {"test": binary(f, "t.npz", b"PK but no zip")},
    "must have an array X, got Q": lambda f: {"test": npz(f, "t.npz", Q=f.Z)},
    "X of": lambda f: {"test": npz(f, "t.npz", X=np.array(3.0))},
    "must be an npz file of plain arrays, got another (Object arrays": lambda f: {
        "test": npz(f, "o.npz", X=np.array([{}], dtype=object))
    },
    "X_te must be (points, 2), got shape (5, 3)": lambda f: {
        "test": npz(f, "t.npz", X=np.zeros((5, 3)))
    },
    "must have features next to the target, got y": lambda f: {
        "train": f.csv("t.csv", "y", f.y),
    },
    "the header of": lambda f: {"train": f.csv("t.csv", "a,b,y", *f.X.T, ["cat"] * M)},
    "y_tr must hold labels from 0 to 2": lambda f: {
        "train": f.csv("t.csv", "a,b,y", *f.X.T, f.y + 7)
    },
    "H_tr must have one column for each of 3 classes, got 2": lambda f: {
        "predictions": f.csv("two.csv", "p,q", *np.concatenate([f.H, f.G]).T[:2])
    },
    "must be probabilities, rows that sum to one": lambda _: {"probabilities": []},
    "--out must be a .html or .json file in a folder that exists": lambda f: {
        "out": f.folder / "none" / "report.html"
    },
    "confidence must be between 0 and 1, got 3.0": lambda _: {"confidence": 3},
    "--target must be one column where targets are labels": lambda _: {"target": ["a", "y"]},
}


def binary(files: Files, name: str, content: bytes) -> Path:
    path = files.folder / name
    path.write_bytes(content)
    return path


def npz(files: Files, name: str, **arrays: Any) -> Path:
    np.savez(files.folder / name, **arrays)
    return files.folder / name


@pytest.mark.parametrize("sentence", MISTAKES)
def test_every_mistake_is_one_sentence_and_exit_code_2(
    sentence: str, labels: Files, capsys: pytest.CaptureFixture[str]
) -> None:
    usual = labels.usual()
    assert main(labels.ask(**{**usual, **MISTAKES[sentence](labels)})) == 2
    told = capsys.readouterr()
    assert told.out == ""
    (line,) = told.err.splitlines()
    assert line.startswith("error: ")
    assert sentence in line


def test_probabilities_make_no_sense_for_real_targets(
    real: Files, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(real.ask(probabilities=[])) == 2
    assert "--probabilities must be left out" in capsys.readouterr().err


# Tables of any kind, for the NC that ships.


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns a folder with the files of a forest, which reads text and missing values."""
    folder, g = tmp_path_factory.mktemp("shop"), np.random.default_rng(0)
    frame = pd.DataFrame({"when": pd.date_range("2026-01-01", periods=400, freq="6h")})
    frame["age"] = g.integers(18, 80, 400)
    frame["city"] = g.choice(["Oslo", "Rome", "Bern"], 400)
    frame["income"] = np.where(g.random(400) < 0.1, np.nan, g.normal(3, 1, 400))
    chance = 1 / (1 + np.exp(-0.1 * (frame.age - 45) - 1.5 * (frame.city == "Rome")))
    frame["bought"] = np.where(g.random(400) < chance, "yes", "no")
    frame["spent"] = frame.age + g.normal(0, 3, 400)
    X = frame[["age", "city", "income"]]
    encode = make_column_transformer(
        (OneHotEncoder(), ["city"]), ("passthrough", ["age", "income"])
    )
    forest = make_pipeline(encode, RandomForestClassifier(random_state=0))
    forest.fit(X[:150], frame.bought[:150])
    out = cross_val_predict(forest, X[:150], frame.bought[:150], method="predict_proba")
    for name, table in {
        "train": frame[["age", "city", "income", "bought"]][:150],
        "spent": frame[["age", "city", "income", "spent"]][:150],
        "test": X[150:],
        "timed": frame[["when", "age", "city", "income", "bought"]][:150],
        "stream": frame[["income", "when", "age", "city", "bought"]][150:],
        "told": pd.DataFrame(forest.predict_proba(X)[:, ::-1], columns=["yes", "no"]),
        "out": pd.DataFrame(out, columns=["no", "yes"]),
        "guess": pd.DataFrame({"spent": frame.age + 1.0}),
    }.items():
        table.to_csv(folder / f"{name}.csv", index=False)
    return folder


def test_a_table_of_any_kind_is_assessed_without_an_nc(shop: Path) -> None:
    files = ModelFiles(
        train=shop / "train.csv", test=shop / "test.csv", predictions=shop / "told.csv"
    )
    alone, notes = assess_files(None, files, metrics=("roc_auc",))
    assert notes == ["predictions are taken for probabilities, as each row sums to one"]
    found, _ = assess_files(None, files, metrics=("roc_auc",), out_of_fold=shop / "out.csv")
    assert found.accuracy_te is not None
    assert 0.6 < found.accuracy_te < 1
    assert found.accuracy_tr == 1
    assert set(found.metrics) == {"accuracy", "log_loss", "roc_auc"}
    assert (alone.checked, alone.cross_validated) == (None, {})
    assert found.checked is not None
    assert found.checked.points == 150
    assert {one.feature for one in found.slices} <= {"age", "city", "income"}
    assert found.inputs is not None
    assert list(found.inputs.columns) == ["age", "city", "income"]


def test_the_nc_of_numbers_is_for_predictions_of_one_column(shop: Path) -> None:
    files = ModelFiles(
        train=shop / "spent.csv", test=shop / "test.csv", predictions=shop / "guess.csv"
    )
    found, notes = assess_files(None, files)
    assert (found.loss, notes) == ("squared_error", [])
    assert 0 < found.loss_te < 100


def test_a_stream_is_monitored_from_files(
    shop: Path,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    words = ["monitor", "--predictions", str(shop / "told.csv"), "--timestamp", "when"]
    words += ["--train", str(shop / "timed.csv"), "--stream", str(shop / "stream.csv")]
    page, data = tmp_path / "monitor.html", tmp_path / "all.csv"
    monkeypatch.chdir(tmp_path)
    assert main([*words, "--period", "2W"]) == 0
    told = capsys.readouterr()
    assert told.out.endswith("written: monitor.html\n")
    assert "the reference is the first chunk" in told.err
    assert "rows with their labels" in told.err
    assert "Alarms in" in page.read_text()
    outside = ["--out-of-fold", str(shop / "out.csv")]
    assert main([*words, "--size", "125", *outside, "--out", str(data)]) == 0
    told = capsys.readouterr()
    assert "reference" not in told.err
    assert len(told.out.splitlines()) == 3
    frame = pd.read_csv(data)
    assert frame["rows"].tolist() == [125, 125]
    assert frame["p_value"].notna().all()


def test_a_stream_needs_something_to_compare_with(
    shop: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["monitor", "--predictions", str(shop / "told.csv"), "--timestamp", "when"]
    words += ["--train", str(shop / "timed.csv"), "--stream", str(shop / "stream.csv")]
    for more, sentence in (
        (["--size", "999"], "must have at least two chunks, the first of which is the reference"),
        (["--out", "a.json"], "--out must be a .html or .csv file in a folder that exists"),
        (["--nc", "sinusoid"], "nc must be for tables to monitor a model, got another"),
        (
            ["--out-of-fold", str(shop / "told.csv")],
            "must have 150 rows, one for each training row, got 400",
        ),
    ):
        assert main([*words, *more]) == 2
        assert sentence in capsys.readouterr().err


@pytest.fixture
def three(tmp_path: Path) -> Any:
    """Returns what writes the files of predictions of three classes, and assesses them."""
    g = np.random.default_rng(0)
    X, y = g.normal(size=(60, 2)), np.arange(60) % 3
    P = g.dirichlet(np.ones(3), 80)

    def assessed(names: list[Any], **changes: Any) -> tuple[Assessment, list[str]]:
        train = pd.DataFrame({"a": X[:, 0], "b": X[:, 1], "y": np.array(names, dtype=object)[y]})
        train.to_csv(tmp_path / "train.csv", index=False)
        pd.DataFrame(g.normal(size=(20, 2)), columns=["a", "b"]).to_csv(
            tmp_path / "test.csv", index=False
        )
        told = pd.DataFrame(changes.get("P", P), columns=changes.get("header", names))
        told.to_csv(tmp_path / "told.csv", index=False)
        paths: dict[str, Any] = {name: tmp_path / f"{name}.csv" for name in ("train", "test")}
        files = ModelFiles(**paths, predictions=tmp_path / changes.get("told", "told.csv"))
        out = None
        if "out" in changes:
            out = tmp_path / "out.csv"
            changes["out"].to_csv(out, index=False)
        return assess_files(None, files, out_of_fold=out)

    assessed.P, assessed.folder = P, tmp_path  # type: ignore[attr-defined]
    return assessed


def test_classes_may_have_names_of_any_kind(three: Any) -> None:
    usual = three(["x", "y", "z"])[0].loss_tr
    for names in (["1", "2", "3+"], [-1, 0, 1], [0.0, 1.0, 2.0], [10, 20, 30]):
        assert three(names)[0].loss_tr == pytest.approx(usual)


def test_rounded_probabilities_are_no_logits(three: Any) -> None:
    usual, notes = three(["x", "y", "z"])
    rounded, told = three(["x", "y", "z"], P=three.P.round(2))
    assert rounded.loss_tr == pytest.approx(usual.loss_tr, rel=0.3)
    assert notes != told
    assert told == ["predictions are taken for rounded probabilities, and made to sum to one"]
    logits, told = three(["x", "y", "z"], P=np.log(three.P) + 3)
    assert logits.loss_tr == pytest.approx(usual.loss_tr, rel=1e-5)
    assert told == ["predictions are taken for logits, as rows do not sum to one"]


def test_predictions_out_of_fold_have_the_columns_of_the_others(three: Any) -> None:
    names, header = ["x", "y", "z"], ["p0", "p1", "p2"]
    for columns in (names, header):
        out = pd.DataFrame(three.P[:60], columns=columns)
        same, other = (
            three([0, 1, 2] if columns is header else names, header=columns, out=frame)[0]
            for frame in (out, out.iloc[:, ::-1])
        )
        assert same.cross_validated["loss"].value == other.cross_validated["loss"].value
    with pytest.raises(ValueError, match=r"out.csv must have columns x, y, z, got p0, p1, p2"):
        three(names, out=pd.DataFrame(three.P[:60], columns=header))


def test_arrays_of_predictions_have_a_row_for_each_point(three: Any) -> None:
    np.savez(three.folder / "told.npz", H_tr=three.P[:65], H_te=three.P[65:])
    with pytest.raises(ValueError, match=r"H_tr of .* must have 60 rows, one for each training"):
        three([0, 1, 2], told="told.npz")
    np.savez(three.folder / "told.npz", H_tr=three.P[:60], H_te=three.P[60:])
    whole = three([0, 1, 2])[0].loss_tr
    assert three([0, 1, 2], told="told.npz")[0].loss_tr == pytest.approx(whole)


class Counted(str):
    compared = 0
    __hash__ = str.__hash__

    def __eq__(self, other: object) -> bool:
        Counted.compared += 1
        return str.__eq__(self, other)


def test_many_columns_take_a_time_that_grows_as_their_number() -> None:
    sides: list[Any] = [{Counted(f"c{i}"): np.zeros(2) for i in range(1000)} for _ in range(2)]
    train, test = (File(Path("a.csv"), side, is_table=True) for side in sides)
    files = ModelFiles(train=train.path, test=test.path, predictions=Path("p.csv"))
    Counted.compared = 0
    assert len(_columns(files, train, test)[1]) == 999
    assert Counted.compared < 20_000  # each with each would be a million


def test_memory_that_files_may_take_is_an_option(labels: Files) -> None:
    with pytest.raises(ValueError, match="must take at most 1e-09 GB of memory"):
        ask(labels, **labels.usual(), max_memory=1e-9)


@pytest.mark.parametrize("for_tables", [True, False])
def test_predictions_of_both_sets_have_equally_many_columns(
    labels: Files, for_tables: bool
) -> None:
    told = npz(labels, "told.npz", H_tr=labels.H, H_te=labels.G[:, :2])
    given = ModelFiles(**{**labels.usual(), "predictions": told})
    with pytest.raises(ValueError, match="H_te must have 3 columns like H_tr, got 2"):
        assess_files(None if for_tables else labels.nc, given)
