"""One small file, or folder of files, of every kind that the library reads, to be damaged."""

import hashlib
import io
import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from sklearn.datasets import load_iris
from sklearn.linear_model import LogisticRegression

from assessed import LABELS, calibrated
from glyphs import write_zip
from labelled import cifar10_files, cifar10_tar, draw, svhn, write_idx
from neural_complexity.assessment.from_files import assess_files
from neural_complexity.assessment.model_files import ModelFiles
from neural_complexity.convert.files_in import read_file
from neural_complexity.experiments.base.experiment import load_experiment
from neural_complexity.experiments.base.rows import Row, write_rows
from neural_complexity.experiments.base.run_folder import RunFolder
from neural_complexity.files import write_json, write_tensors
from neural_complexity.learners.fit import Recipe
from neural_complexity.learners.networks import mlp
from neural_complexity.meta.bank import MemoryBank
from neural_complexity.meta.trainer import MetaLearner
from neural_complexity.model.network import NeuralComplexity, find_nc
from neural_complexity.seeding import stream
from neural_complexity.snapshot import Snapshot
from neural_complexity.tasks.families import Sinusoids
from neural_complexity.tasks.image_datasets import DATASETS, load
from neural_complexity.tasks.omniglot_files import omniglot
from neural_complexity.workspace import Workspace, fingerprint

__all__ = ["SLOW", "SPECIMENS", "Specimen", "collect", "nc_answers", "table_files"]


@dataclass(frozen=True)
class Specimen:
    """Files of a kind, by their paths in a folder, and how they are read."""

    name: str
    files: dict[str, bytes]
    read: Callable[[Path], object]
    checked: bool  # whether a checksum tells that they are damaged
    right: str = ""  # the fingerprint of what is read


Maker = Callable[[Path], Callable[[Path], object]]  # writes into a folder; returns what reads it


def collect(folder: Path, names: list[str] | None = None) -> list[Specimen]:
    """Returns specimens; a folder is for making them."""
    found = []
    for name, (make, checked) in SPECIMENS.items():
        if names is not None and name not in names:
            continue
        own = folder / name.replace(" ", "-")
        own.mkdir()
        read = make(own)
        files = {str(p.relative_to(own)): p.read_bytes() for p in own.rglob("*") if p.is_file()}
        right = fingerprint(read(own))
        assert right == fingerprint(read(own)), f"{name} must be read the same twice"
        found.append(Specimen(name, files, read, checked, right))
    return found


def nc_answers(nc: NeuralComplexity) -> object:
    """Returns all that an NC knows, and an answer of it, which must be finite."""
    g = torch.Generator().manual_seed(0)
    X, Z = (torch.randn(1, n, *nc.shape, generator=g).to(nc.x_mean) for n in (6, 5))
    H, G = (torch.randn(1, n, nc.outputs, generator=g).to(nc.x_mean) for n in (6, 5))
    Y = torch.arange(6)[None] % nc.outputs if nc.labels else torch.zeros_like(H)
    with torch.no_grad():
        gap = nc.predict(X, Y, H, Z, G)
    if not gap.isfinite().all():
        raise AssertionError("NC's answer must be finite")
    calibration = nc.calibration and (nc.calibration.tensors(), nc.calibration.text())
    return dict(nc.state_dict()), nc.card.to_json(), asdict(nc.architecture), calibration, gap


def _nc(folder: Path) -> Callable[[Path], object]:
    nc, _ = calibrated()
    nc.card = replace(nc.card, learned_from=nc.card.remember([torch.randn(4, 1)]))
    nc.save(folder / "nc.safetensors")
    return lambda folder: nc_answers(NeuralComplexity.load(folder / "nc.safetensors"))


def _nc_of_labels(folder: Path) -> Callable[[Path], object]:
    NeuralComplexity(2, 3, symmetric=True, vote=True, metric=True, **LABELS).save(folder / "nc.st")
    return lambda folder: nc_answers(NeuralComplexity.load(folder / "nc.st"))


def _bank(folder: Path) -> Callable[[Path], object]:
    g = torch.Generator().manual_seed(0)
    sizes = ((4, 2), (4, 1), (4, 1), (5, 2), (5, 1))
    snapshot = Snapshot(*(torch.randn(24, *size, generator=g) for size in sizes))
    bank = MemoryBank(snapshot, torch.randn(24, 5, 1), capacity=20, folder=folder / "bank")
    bank.add(snapshot, torch.randn(24, 5, 1, generator=g))
    bank.flush()

    def read(folder: Path) -> object:
        bank = MemoryBank.open(folder / "bank", snapshot.X_tr)
        bank.verify()
        snapshots, Y_te = bank.sample(200, stream(0, "bank"))
        return vars(snapshots), Y_te, bank.state()

    return read


def _learner(folder: Path) -> MetaLearner:
    family = Sinusoids(train_points=4, test_points=5)
    recipe = Recipe(make=partial(mlp, 1, (4,), 1), steps=2, lr=0.05)
    sizes: dict[str, Any] = {"width": 8, "heads": 2, "encoder_layers": 1, "decoder_layers": 1}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        nc = NeuralComplexity.for_tasks(family.sample(8, stream(0, "units")), **sizes)
    own: dict[str, Any] = {"iterations": 4, "updates": 1, "tasks": 4, "batch": 4, "capacity": 20}
    return MetaLearner(nc, family, recipe, seed=0, workspace=Workspace(folder, "a"), **own)


def _checkpoint(folder: Path) -> Callable[[Path], object]:
    learner = _learner(folder)
    learner.iterate()
    learner.save()

    def read(folder: Path) -> object:
        learner = _learner(folder)
        learner.iterate()
        return dict(learner.nc.state_dict()), learner.iteration, learner.bank.state()

    return read


def _part(folder: Path) -> Callable[[Path], object]:
    def read(folder: Path) -> object:
        work = Workspace(folder, "a")
        return work.do("part", lambda: {"loss_te": torch.arange(12.0)}), len(work.seconds)

    read(folder)
    return read


def _run_folder(folder: Path) -> Callable[[Path], object]:
    experiment = load_experiment("tilts")
    config = experiment.presets["smoke"]()
    write_json(
        folder / "config.json", {"experiment": "tilts", "commit": "a", "config": asdict(config)}
    )
    write_json(folder / "run.json", {"machine": {}, "facts": {}, "history": {}})
    write_tensors(folder / "figures.safetensors", {"a": torch.arange(4.0)}, {})
    rows = [
        Row("tilts", metric, {"targets": "labels"}, 0.5, 0.1, 4, None, 0, "a")
        for metric in ("mean absolute error", "inside")
    ]
    write_rows(folder / "rows.jsonl", rows)

    def read(folder: Path) -> object:
        run = RunFolder(folder)
        return asdict(run.config()), vars(run.results()[0])

    return read


def table_files(folder: Path, ending: str) -> ModelFiles:
    """Writes a small table and its model, as the command `assess` reads them."""
    paths = {name: folder / f"{name}.{ending}" for name in ("train", "test", "predictions")}
    for name, path in paths.items():
        path.write_bytes(_table(ending)[name])
    return ModelFiles(train=paths["train"], test=paths["test"], predictions=paths["predictions"])


@cache
def _table(ending: str) -> dict[str, bytes]:
    """Returns the contents of files of a table and its model."""
    X, y = load_iris(return_X_y=True, as_frame=True)
    rows = np.random.default_rng(0).permutation(len(X))[:60]
    codes = y.to_numpy()[rows]
    X = X.iloc[rows].set_axis(["w", "x", "y", "z"], axis=1).reset_index(drop=True)
    model = LogisticRegression(max_iter=1000).fit(X[:40], codes[:40])
    H = model.predict_proba(X)
    names = np.array(["a", "b", "c"])
    frames = {"train": X[:40].assign(target=names[codes[:40]]), "test": X[40:]}
    frames["predictions"] = pd.DataFrame(H, columns=names)
    arrays = {"train": {"X": X[:40].to_numpy(), "y": codes[:40]}, "test": {"X": X[40:].to_numpy()}}
    arrays["predictions"] = {"H_tr": H[:40], "H_te": H[40:]}
    found = {}
    for name, frame in frames.items():
        file = io.BytesIO()
        if ending == "csv":
            frame.to_csv(file, index=False)
        elif ending == "parquet":
            frame.to_parquet(file)
        else:
            np.savez(file, **arrays[name])
        found[name] = file.getvalue()
    return found


def _files(ending: str, folder: Path) -> Callable[[Path], object]:
    table_files(folder, ending)

    def read(folder: Path) -> object:
        every = [read_file(path, numbered=True) for path in sorted(folder.glob(f"*.{ending}"))]
        return [{n: _plain(a) for n, a in file.arrays.items()} for file in every]

    return read


def _plain(array: Any) -> Any:
    return json.dumps(array.tolist(), default=str) if array.dtype == object else array


def _assessed(ending: str, folder: Path) -> Callable[[Path], object]:
    files = table_files(folder, ending)
    nc = find_nc("tables")

    def read(folder: Path) -> object:
        own = {n: folder / getattr(files, n).name for n in ("train", "test", "predictions")}
        found, notes = assess_files(nc, ModelFiles(**own))
        assert np.isfinite([found.gap, found.loss_te]).all(), "the gap must be finite"
        return [round(found.gap, 6), len(notes)]

    return read


def _idx(packed: bool, folder: Path) -> Callable[[Path], object]:
    write_idx(folder / "MNIST" / "raw", packed=packed)
    return partial(_load, "mnist")


def _load(name: str, folder: Path) -> object:
    found = load(name, folder, download=False)
    return found.images.pixels, found.images.labels, found.train


def _published(name: str, contents: dict[str, bytes], folder: Path) -> Callable[[Path], object]:
    """Writes files of a dataset, whose checksums are then those that are asked for."""
    files, read = DATASETS[name]
    for path, content in contents.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(content)
    sums = {Path(n).name: f"md5:{hashlib.md5(c).hexdigest()}" for n, c in contents.items()}
    own = [replace(file, checksums=(sums.get(file.name, "md5:0"),)) for file in files]
    DATASETS[name] = own, read
    return partial(_load, name)


def _svhn() -> dict[str, bytes]:
    return {
        f"svhn/{part}_32x32.mat": svhn(*draw(P, 3, 32, 32, seed=P))
        for part, P in (("train", 4), ("test", 3))
    }


def _omniglot(folder: Path) -> Callable[[Path], object]:
    write_zip(folder / "images_background.zip", classes=2, drawings=2)

    def read(folder: Path) -> object:
        found = omniglot("background", folder=folder, download=False)
        return found.pixels, found.labels

    read(folder)  # leaves what it read, packed less tightly, beside it
    return read


def _packed(folder: Path) -> Callable[[Path], object]:
    return _published("cifar-10", {"cifar-10/cifar-10-binary.tar.gz": _tar()}, folder)


def _tar() -> bytes:
    return cifar10_tar(cifar10_files(2))


def _unpacked(folder: Path) -> Callable[[Path], object]:
    return _published("cifar-10", {f"cifar-10/{n}": c for n, c in cifar10_files(2).items()}, folder)


# What makes them, and whether damage must be noticed.
SPECIMENS: dict[str, tuple[Maker, bool]] = {
    "NC": (_nc, True),
    "NC of labels": (_nc_of_labels, True),
    "bank": (_bank, True),
    "checkpoint": (_checkpoint, True),
    "part of a run": (_part, True),
    "folder of a run": (_run_folder, False),
    "CSV": (partial(_files, "csv"), False),
    "parquet": (partial(_files, "parquet"), False),
    "npz": (partial(_files, "npz"), True),
    "assessed CSV": (partial(_assessed, "csv"), False),
    "assessed npz": (partial(_assessed, "npz"), True),
    "IDX": (partial(_idx, False), False),
    "packed IDX": (partial(_idx, True), True),
    "CIFAR": (_unpacked, False),
    "packed CIFAR": (_packed, True),
    "SVHN": (partial(_published, "svhn", _svhn()), True),
    "Omniglot": (_omniglot, True),
}
SLOW = {"checkpoint", "assessed CSV", "assessed npz", "Omniglot"}  # to read
