"""Attacks on files: damaged at random places, and made to ask for more than there is."""

import io
import json
import re
import shutil
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from numpy.random import Generator

from chaos.children import Attempt, wrong_refusal
from chaos.specimens import SLOW as SLOW_TO_READ
from chaos.specimens import Specimen, nc_answers, table_files
from neural_complexity.assessment.from_files import assess_files
from neural_complexity.files import read_tensors, write_tensors
from neural_complexity.model.network import NeuralComplexity
from neural_complexity.tasks.image_datasets import load
from neural_complexity.workspace import fingerprint

__all__ = ["HOSTILE", "OFTEN", "damage", "flip_bits", "send_hostile"]


DATASET = re.compile("(mnist|cifar-10|svhn) must ")
OFTEN = 20  # times as often is tried what takes milliseconds


def flip_bits(specimens: list[Specimen], folder: Path, seed: int) -> Attempt:
    """Returns attempts at reading damaged files: right or refused, where a checksum is."""
    often = [s for s in specimens for _ in range(1 if s.name in SLOW_TO_READ else OFTEN)]

    def attempt(number: int) -> Callable[[], str | None]:
        random = np.random.default_rng([seed, number])
        specimen = often[number % len(often)]
        own = folder / f"{specimen.name.replace(' ', '-')}-{number}"
        damaged = sorted(specimen.files)[random.integers(len(specimen.files))]
        for name, content in specimen.files.items():
            (own / name).parent.mkdir(parents=True, exist_ok=True)
            (own / name).write_bytes(damage(content, random) if name == damaged else content)
        what = f"{specimen.name}, {damaged}"

        def go() -> str | None:
            try:
                same = fingerprint(specimen.read(own)) == specimen.right
                return None if same or not specimen.checked else f"{what} is silently another one"
            except Exception as error:
                # An assessment speaks of X_te and the like, too, and a dataset of itself.
                named = specimen.name.startswith("assessed") or DATASET.match(str(error))
                wrong = wrong_refusal(error, "" if named else str(own))
                return wrong and f"{what}: {wrong}"
            finally:
                shutil.rmtree(own, ignore_errors=True)

        return go

    return attempt


def damage(content: bytes, random: Generator) -> bytes:
    """Returns content with some bits flipped, or a piece of it lost, zero, doubled or random."""
    data, kind = bytearray(content), random.integers(8)
    start = int(random.integers(max(1, len(data))))
    # Headers are short and say most.
    start = start if random.random() < 0.6 else min(start, int(random.integers(200)))
    end = start + int(random.integers(1, 64))
    if kind < 4:
        for _ in range(int(random.integers(1, 9)) if kind else 1):
            place = start if kind < 2 else int(random.integers(max(1, len(data))))
            data[place : place + 1] = bytes(b ^ 1 << random.integers(8) for b in data[place:][:1])
    elif kind == 4:
        del data[start : end if random.random() < 0.5 else len(data)]
    elif kind == 5:
        data[start:end] = bytes(end - start)
    elif kind == 6:
        data[start:start] = data[start:end] or b"\0"
    else:
        data[start:end] = random.bytes(end - start)
    return bytes(data)


def send_hostile(folder: Path, seed: int) -> Attempt:
    """Returns attempts at reading files that were made to do harm."""
    # Those that take milliseconds are sent more often than those that take long to make.
    kinds = [kind for kind in HOSTILE for _ in range(1 if kind in SLOW else OFTEN)]

    def attempt(number: int) -> Callable[[], str | None]:
        random = np.random.default_rng([seed, number])
        kind, own = kinds[number % len(kinds)], folder / f"hostile-{number}"
        own.mkdir()
        read = HOSTILE[kind](own, random)

        def go() -> str | None:
            try:
                read()
            except Exception as error:
                wrong = wrong_refusal(error, str(own) if kind not in SLOW else "")
                return wrong and f"{kind}: {wrong}"
            finally:
                shutil.rmtree(own, ignore_errors=True)
            return None

        return go

    return attempt


Read = Callable[[], object]
HUGE = (10**3, 10**4, 10**5, 10**6, 10**9, 2**31, 2**63, 10**30)
ODD: tuple[Any, ...] = (*HUGE, 0, -1, 1.5, 1e308, float("nan"), float("inf"), None, True, "", "a")
ODD += ([], [1], {}, {"a": 1}, [[1, 2], 3], "\0", "9" * 400)


def _odd(random: Generator) -> Any:
    return ODD[random.integers(len(ODD))]


def _tampered_nc(folder: Path, random: Generator) -> Read:
    """Writes an NC whose header asks for something else than its tensors are, and asks it."""
    small = NeuralComplexity(1, 1, width=8, heads=2, encoder_layers=1, decoder_layers=1)
    path = folder / "nc.safetensors"
    small.save(path)
    tensors, header = read_tensors(path)
    for _ in range(random.integers(1, 4)):
        part = ("architecture", "provenance", "tensors", "header")[random.integers(4)]
        if part == "tensors":
            name = sorted(tensors)[random.integers(len(tensors))]
            tensors[name] = _odd_tensor(tensors[name], random)
        elif part == "header":
            header[sorted(header)[random.integers(len(header))]] = json.dumps(_odd(random))
        else:
            _tamper(header, part, random)
    write_tensors(path, tensors, header)
    return lambda: nc_answers(NeuralComplexity.load(path))


def _tamper(header: dict[str, str], part: str, random: Generator) -> None:
    """Changes a field of what a header says, or adds one that it may have."""
    try:
        fields = json.loads(header.get(part, "{}"))
    except json.JSONDecodeError:
        fields = None
    if not isinstance(fields, dict) or not fields:
        return
    known = {"report", "shown", "classes", "learned_from", "belief_loss", "plan", "commit"}
    names = sorted({*fields, *known} if part == "provenance" else fields)
    name = names[random.integers(len(names))]
    fields[name] = _odd(random)
    if name == "report" and random.random() < 0.7:
        inner = ("learners", "verdict", "r2", "kinds", "coverage_95", "mean_gap")
        fields[name] = {inner[random.integers(len(inner))]: _odd(random)}
    header[part] = json.dumps(fields)


def _odd_tensor(tensor: torch.Tensor, random: Generator) -> torch.Tensor:
    kind, tensor = random.integers(6), tensor.clone()
    if kind < 2 and tensor.is_floating_point() and tensor.numel():
        tensor.view(-1)[random.integers(tensor.numel())] = (np.nan, np.inf)[kind]
        return tensor
    changes: list[Callable[[torch.Tensor], torch.Tensor]] = [
        lambda t: t.double(), lambda t: t[:0], lambda t: t.flatten()[:3], lambda t: t.to(torch.int8)
    ]  # fmt: skip
    return changes[random.integers(4)](tensor)


def _container(folder: Path, random: Generator) -> Read:
    """Writes a safetensors file by hand, with a header that lies about itself."""
    size = int(random.choice([8, 64, 10**6, 2**40, 2**63]))
    shape = [int(random.choice([1, 10**6, 2**40])) for _ in range(random.integers(1, 4))]
    entry = {"dtype": str(random.choice(["F32", "F64", "I8", "?"])), "shape": shape}
    entry["data_offsets"] = [int(random.choice([0, 4, 2**40, -1])), int(random.choice([4, 2**50]))]
    name = ("a", "a" * 10_000, "")[random.integers(3)]
    text = json.dumps({name: entry, "__metadata__": {"format": "neural-complexity"}})
    if random.random() < 0.2:
        text = "[" * int(random.choice([100, 10**5])) if random.random() < 0.5 else '{"a":' * 10**4
    length = len(text) if random.random() < 0.5 else size
    (folder / "nc.safetensors").write_bytes(struct.pack("<Q", length) + text.encode() + bytes(8))
    return lambda: NeuralComplexity.load(folder / "nc.safetensors")


def _assess(folder: Path, ending: str, name: str, write: Callable[[Path], None]) -> Read:
    """Assesses a table one file of which is another one."""
    files = table_files(folder, ending)
    write(folder / f"{name}.{ending}")

    def read() -> None:
        found, _ = assess_files(None, files)
        assert np.isfinite([found.gap, found.loss_te]).all(), "the gap must be finite"

    return read


def _which(random: Generator) -> str:
    return str(random.choice(["train", "test", "predictions"]))


def _csv(folder: Path, random: Generator) -> Read:
    """Writes a CSV with a long cell, many columns, many rows, or odd characters."""
    size = int(10 ** random.uniform(0, 5.1))
    rows = int(10 ** random.uniform(0, 4.4))
    kind = random.integers(6)

    def write(path: Path) -> None:
        text = path.read_text()
        lines = text.splitlines()
        if kind == 0:
            lines = [*lines, *([lines[1]] * rows), lines[1].rsplit(",", 1)[0] + "," + "b" * size]
        elif kind == 1:
            few = min(size, 50_000)
            lines = [line + "".join(f",{i}" for i in range(few)) for line in lines[:4]]
        elif kind == 2:
            lines[-1] = '"' + lines[-1] + "\n" * size
        elif kind == 3:
            lines = [lines[0], *(line.replace("1", "9" * min(size, 10_000)) for line in lines[1:])]
        elif kind == 4:
            lines.insert(int(random.integers(len(lines))), "\0\ufeff\u202e" * min(size, 1000))
        else:
            lines = [*lines, *(lines[1] for _ in range(rows))]
        path.write_text("\n".join(lines))

    return _assess(folder, "csv", _which(random), write)


def _npz(folder: Path, random: Generator) -> Read:
    """Writes an npz of zeros that are packed tightly, or of headers without what they promise."""
    kind, size = random.integers(5), int(10 ** random.uniform(3, 9.5))

    def write(path: Path) -> None:
        with np.load(path) as known:
            arrays = dict(known)
        name = sorted(arrays)[random.integers(len(arrays))]
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
            for key, array in arrays.items():
                content = _npy(array.shape, array.dtype.str) + array.tobytes()
                if key == name and kind == 0:
                    content = _npy((size,), "<f8")
                elif key == name and kind == 1:
                    content = _npy((size, size, 2**20), "<f8") + array.tobytes()
                elif key == name and kind == 2:
                    content = _npy(array.shape, "|O") + array.tobytes()
                archive.writestr(f"{key}.npy", content)
            if kind >= 3:  # an array, that is asked for or not
                few = min(size, 4 * 10**8)
                head = _npy((few,) if kind == 3 else (few // 4, 4), "|u1" if kind == 3 else "|i1")
                with archive.open("unused.npy" if kind == 3 else f"{name}2.npy", "w") as entry:
                    entry.write(head)
                    for _ in range(few // 2**20):
                        entry.write(bytes(2**20))
                    entry.write(bytes(few % 2**20))

    return _assess(folder, "npz", _which(random), write)


def _npy(shape: tuple[int, ...], dtype: str) -> bytes:
    file = io.BytesIO()
    header = {"descr": dtype, "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(file, header)
    return file.getvalue()


def _parquet(folder: Path, random: Generator) -> Read:
    """Writes a parquet of many equal rows, or of equal long labels, which are packed tightly."""
    rows, long = int(10 ** random.uniform(3, 7.5)), int(10 ** random.uniform(1, 5))
    as_text = random.random() < 0.5

    def write(path: Path) -> None:
        table = pq.read_table(path)
        last = table.column_names[-1]
        cells = min(rows, 20_000 if as_text else rows)
        step = min(cells, 10**6)
        columns = {}
        for name in table.column_names:
            first = table.column(name)[0].as_py()
            value = "b" * long if as_text and name == last else first
            one = pa.array([value])
            columns[name] = pa.DictionaryArray.from_arrays(pa.array(np.zeros(step, np.int32)), one)
        part = pa.table(columns)
        with pq.ParquetWriter(path, part.schema, compression="zstd") as writer:
            for _ in range(max(1, cells // step)):
                writer.write_table(part)

    return _assess(folder, "parquet", _which(random), write)


def _idx(folder: Path, random: Generator) -> Read:
    """Writes an IDX file whose header promises more than there is."""
    own = folder / "MNIST" / "raw"
    own.mkdir(parents=True)
    for part in ("train", "t10k"):
        for kind, axes in (("images-idx3", 3), ("labels-idx1", 1)):
            shape = [
                int(random.choice([0, 1, 5, 2**16, 2**31 - 1, 2**32 - 1])) for _ in range(axes)
            ]
            content = struct.pack(f">HBB{axes}I", 0, 8, axes, *shape) + bytes(25)
            (own / f"{part}-{kind}-ubyte").write_bytes(content)
    return lambda: load("mnist", folder, download=False)


def _frames(folder: Path, random: Generator) -> Read:
    """Writes a CSV of cells of many kinds."""
    cells = [
        "",
        "nan",
        "1e999",
        "-inf",
        "0x10",
        "1_000",
        "2020-01-01",
        "true",
        "💥",
        " ",
        "NaT",
        '"',
    ]
    frame = pd.DataFrame(
        random.choice(cells, size=(int(random.integers(1, 50)), int(random.integers(1, 8))))
    )
    return _assess(folder, "csv", _which(random), lambda path: frame.to_csv(path, index=False))


HOSTILE: dict[str, Callable[[Path, Generator], Read]] = {
    "tampered NC": _tampered_nc,
    "container": _container,
    "CSV": _csv,
    "npz": _npz,
    "parquet": _parquet,
    "IDX": _idx,
    "cells": _frames,
}
SLOW = {"CSV", "npz", "parquet", "cells"}  # to make or to read; their values are assessed, too
