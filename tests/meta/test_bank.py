import errno
import os
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chisquare
from torch import Tensor

from conftest import random_snapshot
from neural_complexity.files import read_json, write_json
from neural_complexity.meta.bank import MemoryBank
from neural_complexity.points import indexed, raw, values
from neural_complexity.seeding import stream
from neural_complexity.snapshot import Snapshot

LIKE = torch.zeros(1, 2, 1)


def numbered(first: int, count: int) -> tuple[Snapshot, Tensor]:
    """Rows that can be told apart: row i is filled with i."""
    column = torch.arange(first, first + count, dtype=torch.float64).reshape(-1, 1, 1)
    sets = [column.expand(-1, points, 1).clone() for points in (2, 2, 2, 3, 3, 3)]
    return Snapshot(*sets[:5]), sets[5]


def make(capacity: int, folder: Path | None = None, slack: int = 0) -> MemoryBank:
    return MemoryBank(*numbered(0, 1), capacity=capacity, folder=folder, slack=slack)


def content(bank: MemoryBank, draws: int = 400) -> set[int]:
    snapshot, Y_te = bank.sample(draws, stream(0, "content"))
    for tensor in snapshot.tensors():
        assert torch.equal(tensor[:, 0, 0], Y_te[:, 0, 0])  # fields stay together
    return {int(value) for value in Y_te[:, 0, 0]}


@given(
    capacity=st.integers(1, 12),
    slack=st.integers(0, 5),
    adds=st.lists(st.integers(1, 20), min_size=1, max_size=6),
)
def test_the_ring_keeps_exactly_the_newest_rows(capacity: int, slack: int, adds: list[int]) -> None:
    bank, total = make(capacity, slack=slack), 0
    for count in adds:
        assert bank.add(*numbered(total, count)) == count
        total += count
    assert len(bank) == min(total, capacity)
    assert content(bank) == set(range(max(0, total - capacity), total))


def test_sampling_is_uniform() -> None:
    bank = make(20)
    bank.add(*numbered(0, 30))
    _, Y_te = bank.sample(20_000, stream(1, "sample"))
    counts = torch.bincount(Y_te[:, 0, 0].long() - 10, minlength=20)
    assert chisquare(counts.numpy()).pvalue > 1e-3


@given(
    capacity=st.integers(1, 12),
    slack=st.integers(0, 5),
    added=st.integers(1, 30),
    run=st.integers(1, 15),
    batch=st.integers(1, 40),
    seed=st.integers(0, 100),
)
def test_rows_drawn_together_stand_side_by_side(
    capacity: int, slack: int, added: int, run: int, batch: int, seed: int
) -> None:
    bank = make(capacity, slack=slack)
    bank.add(*numbered(0, added))
    snapshot, Y_te = bank.sample(batch, stream(seed, "sample"), run=run)
    assert len(Y_te) == batch
    rows = Y_te[:, 0, 0].long()
    assert torch.equal(snapshot.H_tr[:, 0, 0].long(), rows)
    oldest = added - len(bank)
    assert ((rows >= oldest) & (rows < added)).all()
    for part in rows.split(run):  # one after another, from the oldest on to the newest again
        steps = (part[:-1] - part[1:]) % len(bank)
        assert (steps == 1 % len(bank)).all()


@pytest.mark.parametrize("run", [4, 7])
def test_sampling_side_by_side_is_uniform_too(run: int) -> None:
    bank = make(20)
    bank.add(*numbered(0, 30))
    _, Y_te = bank.sample(run * 10_000, stream(1, "sample"), run=run)
    rows = Y_te[:, 0, 0].long().view(-1, run) - 10
    for place in range(run):
        counts = torch.bincount(rows[:, place], minlength=20)
        assert chisquare(counts.numpy()).pvalue > 1e-3
    # Drawn one by one is what it was.
    alone, same = bank.sample(50, stream(2, "x"))[1], bank.sample(50, stream(2, "x"), run=1)[1]
    assert torch.equal(alone, same)


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf, 1e80])
@pytest.mark.parametrize("field", range(6))
def test_rows_that_are_not_finite_are_refused_and_counted(bad: float, field: int) -> None:
    snapshot, Y_te = numbered(0, 4)
    [*snapshot.tensors(), Y_te][field][2, 0, 0] = bad  # 1e80: its fourth power is not finite
    bank = make(10)
    assert bank.add(snapshot, Y_te) == 3
    assert (bank.dropped, len(bank)) == (1, 3)
    assert content(bank) == {0, 1, 3}


def test_a_bank_on_disk_survives_a_restart(tmp_path: Path) -> None:
    bank = make(8, tmp_path / "bank")
    bank.add(*numbered(0, 11))
    bank.dropped = 2
    bank.flush()
    again = MemoryBank.open(tmp_path / "bank", LIKE)
    assert again.state() == bank.state()
    assert content(again) == content(bank) == set(range(3, 11))
    again.add(*numbered(11, 1))
    assert content(again) == set(range(4, 12))


def test_a_bank_goes_back_as_far_as_its_slack(tmp_path: Path) -> None:
    bank = make(8, tmp_path / "bank", slack=5)
    bank.add(*numbered(0, 20))
    bank.flush()
    before, drawn = bank.state(), bank.sample(50, stream(0, "x"))[1]
    bank.add(*numbered(20, 5))
    again = MemoryBank.open(tmp_path / "bank", LIKE, before)
    assert torch.equal(again.sample(50, stream(0, "x"))[1], drawn)
    bank.add(*numbered(25, 1))
    bank.flush()
    with pytest.raises(ValueError, match="must be at most 5 rows past 20, got 26"):
        MemoryBank.open(tmp_path / "bank", LIKE, before)


def test_memory_and_disk_give_the_same_rows(tmp_path: Path) -> None:
    banks = make(8), make(8, tmp_path / "bank")
    for bank in banks:
        bank.add(*numbered(0, 13))
    in_memory, on_disk = (bank.sample(30, stream(0, "x"))[1] for bank in banks)
    assert torch.equal(in_memory, on_disk)
    assert type(on_disk) is Tensor  # a copy, not a window on the file


def test_integer_labels_keep_their_type() -> None:
    snapshot, Y_te = numbered(0, 3)
    labels = Snapshot(*snapshot.tensors()[:1], snapshot.Y_tr.long(), *snapshot.tensors()[2:])
    bank = MemoryBank(labels, Y_te.long(), capacity=5)
    bank.add(labels, Y_te.long())
    drawn, drawn_Y = bank.sample(20, stream(0, "x"))
    assert drawn.Y_tr.dtype == drawn_Y.dtype == torch.int64
    assert torch.equal(drawn.Y_tr[:, 0], drawn_Y[:, 0])
    assert torch.equal(drawn.H_te[:, 0].long(), drawn_Y[:, 0])


def test_a_full_disk_is_found_out_at_once_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(OSError, match="No space left on device: '.*/bank/rows'"):
        make(8, tmp_path / "bank")
    assert list((tmp_path / "bank").iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"capacity": 0}, "capacity must be at least 1"),
        ({"capacity": 1, "slack": -1}, "slack must not"),
    ],
)
def test_impossible_sizes_are_refused(arguments: dict[str, int], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        MemoryBank(*numbered(0, 1), **arguments)  # type: ignore[arg-type]


def test_rows_of_another_kind_are_refused_and_change_nothing() -> None:
    bank = make(4)
    with pytest.raises(ValueError, match=r"X_tr must have rows of shape \(2, 1\)"):
        bank.add(random_snapshot(B=1), torch.zeros(1, 5, 1))
    snapshot, Y_te = numbered(0, 1)
    with pytest.raises(ValueError, match=r"Y_te must have rows of shape .*float64, got .*float32"):
        bank.add(snapshot, Y_te.float())
    assert len(bank) == 0
    with pytest.raises(ValueError, match="the bank must hold rows"):
        bank.sample(1, stream(0, "x"))


def test_a_damaged_or_missing_bank_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="must hold a memory bank"):
        MemoryBank.open(tmp_path, LIKE)
    bank = make(8, tmp_path / "bank")
    with pytest.raises(ValueError, match="must not hold a memory bank yet"):
        make(8, bank.folder)
    with pytest.raises(ValueError, match="must be at most 0 rows past 5, got 0"):
        MemoryBank.open(tmp_path / "bank", LIKE, {"count": 5, "dropped": 0})
    state = (tmp_path / "bank" / "bank.json").read_text()
    for damage in ('"count"', '"float64"', '"shape"'):
        damaged = state.replace(damage, '"odd"')
        (tmp_path / "bank" / "bank.json").write_text(damaged)
        with pytest.raises(ValueError, match=r"bank.json must have the checksum .* it is damaged"):
            MemoryBank.open(tmp_path / "bank", LIKE)
        (tmp_path / "bank" / "bank.json").write_text(damaged.replace('"checksum": "', '"note": "'))
        with pytest.raises(ValueError, match=r"bank.json must describe a bank, got no"):
            MemoryBank.open(tmp_path / "bank", LIKE)
    (tmp_path / "bank" / "bank.json").write_text(state)
    os.truncate(tmp_path / "bank" / "rows", 10)
    with pytest.raises(ValueError, match="rows must be a file of 1024 bytes"):
        MemoryBank.open(tmp_path / "bank", LIKE)


@given(
    flips=st.lists(st.integers(0, 13 * 128 * 8 - 1), min_size=1, max_size=3, unique=True),
    added=st.integers(9, 40),
)
def test_flipped_bits_are_found_in_every_row_that_can_be_drawn(
    tmp_path_factory: pytest.TempPathFactory, flips: list[int], added: int
) -> None:
    folder = tmp_path_factory.mktemp("bank")
    bank = make(8, folder / "bank", slack=5)
    bank.add(*numbered(0, added))
    bank.flush()
    path, row = folder / "bank" / "rows", bank._rows.dtype
    content = bytearray(path.read_bytes())
    assert (len(content), row.itemsize) == (13 * 128, 128)
    for flip in flips:
        content[flip // 8] ^= 1 << flip % 8
    path.write_bytes(content)
    assert row.fields is not None
    drawn, end = {number % 13 for number in range(added - 8, added)}, row.fields["checksum"][1] + 4
    # Neither between rows, nor where the next rows will be, is there anything to damage.
    hit = [flip for flip in flips if flip // 1024 in drawn and flip // 8 % 128 < end]
    if hit:
        rows = "|".join({str(flip // 1024) for flip in hit})
        sentence = rf"row ({rows}) of .*bank/rows must have the checksum .*, got .*: it is damaged"
        with pytest.raises(ValueError, match=sentence):
            MemoryBank.open(folder / "bank", LIKE).verify()
    else:
        MemoryBank.open(folder / "bank", LIKE).verify()


def test_an_older_row_in_the_place_of_a_newer_one_is_found(tmp_path: Path) -> None:
    bank = make(4, tmp_path / "bank")
    bank.add(*numbered(0, 4))
    before = bank._rows[2].copy()
    bank.add(*numbered(4, 4))
    bank._rows[2] = before  # as where a disk lost what was written
    bank.flush()
    with pytest.raises(ValueError, match="row 2 of .* must have the checksum"):
        MemoryBank.open(tmp_path / "bank", LIKE).verify()


def test_banks_without_checksums_are_opened(tmp_path: Path) -> None:
    bank = make(4, tmp_path / "bank")
    names = [name for name in bank._rows.dtype.names or () if name != "checksum"]
    rows = np.zeros(4, np.dtype([(n, *bank._rows.dtype[n].subdtype) for n in names], align=True))  # type: ignore[misc]
    rows.tofile(tmp_path / "bank" / "rows")
    state = read_json(tmp_path / "bank" / "bank.json")
    del state["checksum"], state["fields"]["checksum"]
    write_json(tmp_path / "bank" / "bank.json", state)
    earlier = MemoryBank.open(tmp_path / "bank", LIKE)
    earlier.verify()
    earlier.add(*numbered(0, 6))
    earlier.flush()
    assert content(MemoryBank.open(tmp_path / "bank", LIKE)) == {2, 3, 4, 5}


def test_points_are_kept_as_indices_and_come_back_as_points(tmp_path: Path) -> None:
    def store(indices: Tensor) -> Tensor:
        return indices[..., None].double()

    X_tr, X_te = (
        indexed(torch.arange(6).view(3, 2), store),
        indexed(torch.arange(3)[:, None], store),
    )
    H_tr, H_te = torch.randn(3, 2, 2), torch.randn(3, 1, 2)
    snapshot, Y_te = Snapshot(X_tr, torch.zeros(3, 2).long(), H_tr, X_te, H_te), torch.ones(3, 1)
    bank = MemoryBank(snapshot, Y_te.long(), capacity=3, folder=tmp_path / "bank")
    bank.add(snapshot, Y_te.long())
    bank.flush()
    for each in (bank, MemoryBank.open(tmp_path / "bank", X_tr)):
        drawn, _ = each.sample(20, stream(0, "x"))
        assert torch.equal(values(drawn.X_te), raw(drawn.X_te)[..., None].double())
        assert torch.isin(raw(drawn.X_tr), torch.arange(6)).all()


def test_a_hundred_million_rows_cost_what_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A sparse file: disks are seldom so empty.
    monkeypatch.setattr(os, "posix_fallocate", lambda file, _, length: os.truncate(file, length))
    points, size = torch.arange(8.0).view(8, 1, 1), 10**8
    data = Snapshot(*[points] * 5), points
    bank = MemoryBank(*data, capacity=size, folder=tmp_path)
    bank.count = size - 3  # the next rows stand at the end and at the start
    bank.add(*data)
    assert (len(bank), bank.row_bytes) == (size, 7 * points.element_size())  # and a checksum
    stored = bank._rows["Y_te"].reshape(size)
    assert (*stored[-3:], *stored[:5]) == tuple(range(8))
    sampled, _ = bank.sample(16, stream(0, "rows"))
    assert len(sampled) == 16
    bank.flush()
    assert MemoryBank.open(tmp_path, points).state() == bank.state()
    file = (tmp_path / "rows").stat()
    assert file.st_size == size * bank.row_bytes
    assert 512 * file.st_blocks < 10**6


def test_others_sample_a_bank_that_one_fills(tmp_path: Path) -> None:
    points = torch.arange(4.0).view(4, 1, 1)
    data = Snapshot(*[points] * 5), points
    bank = MemoryBank(*data, capacity=6, slack=4, folder=tmp_path)
    bank.add(*data)
    bank.flush()
    other = MemoryBank.open(tmp_path, points)
    before = other.sample(50, stream(0, "rows"))[1]
    bank.add(Snapshot(*[points + 9] * 5), points + 9)
    assert torch.equal(other.sample(50, stream(0, "rows"))[1], before)  # none of it half-written
    bank.flush()
    other.refresh()
    for both in zip(
        *(b.sample(50, stream(0, "rows"))[0].tensors() for b in (bank, other)), strict=True
    ):
        assert torch.equal(*both)


def test_a_bank_of_other_fields_is_refused(tmp_path: Path) -> None:
    make(4, tmp_path / "bank")
    path = tmp_path / "bank" / "bank.json"
    state = read_json(path)
    state["fields"]["H_pr"] = state["fields"].pop("H_tr")
    del state["checksum"]
    write_json(path, state)
    with pytest.raises(ValueError, match="bank.json must describe a bank, got no or another H_pr"):
        MemoryBank.open(tmp_path / "bank", LIKE)
