import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save
from torch import Tensor, nn

from neural_complexity.workspace import Workspace, fingerprint, users_code


@dataclass(frozen=True)
class Settings:
    lr: float = 0.1
    sizes: tuple[int, ...] = (1, 2)
    cache: list[int] = field(default_factory=list, compare=False)


@dataclass(frozen=True)
class Others:
    lr: float = 0.1
    sizes: tuple[int, ...] = (1, 2)


class Plain:
    def __init__(self, value: object) -> None:
        self.value = value


class Named(Plain):
    def __repr__(self) -> str:
        return f"Named({self.value})"


def times(factor: float) -> Callable[[float], float]:
    return lambda x: factor * x


def plus(x: float, y: float = 1.0) -> float:
    return x + y


def minus(x: float, y: float = 1.0) -> float:
    return x - y


THINGS: list[Callable[[], object]] = [
    lambda: 1,
    lambda: 1.0,
    lambda: True,
    lambda: None,
    lambda: "1",
    lambda: b"1",
    lambda: Path("1"),
    lambda: [1, 2],
    lambda: [2, 1],
    lambda: {"a": 1, "b": [None]},
    lambda: {"a": 1, "b": [0]},
    lambda: {1, 2},
    lambda: torch.ones(2),
    lambda: torch.ones(2, 1),
    lambda: torch.ones(2, dtype=torch.float32),
    lambda: torch.zeros(2),
    lambda: np.ones(2, dtype=int),
    lambda: np.array(["a", 1], dtype=object),
    lambda: np.array(["a", 2], dtype=object),
    lambda: np.array(["2020-01-01"], dtype="M8[D]"),
    lambda: torch.ones(2, dtype=torch.bfloat16),
    lambda: torch.eye(2).to_sparse(),
    lambda: unbound(1)[0],
    lambda: torch.float32,
    lambda: torch.device("cpu"),
    Settings,
    lambda: Settings(lr=0.2),
    Others,
    lambda: plus,
    lambda: minus,
    lambda: partial(plus, y=2.0),
    lambda: partial(plus, y=3.0),
    lambda: times(2.0),
    lambda: times(3.0),
    lambda: Settings,
    lambda: nn.ReLU,
    lambda: torch.relu,
    lambda: linear(1.0),
    lambda: linear(2.0),
    lambda: Plain(torch.ones(1)),
    lambda: Plain(torch.zeros(1)),
    lambda: Plain(3).__eq__,
    lambda: Named(3).__repr__,
    lambda: Named(3),
    lambda: Named(4),
]


def unbound(x: int) -> tuple[Callable[[], int], str]:
    """Returns a function whose fingerprint is taken before what it encloses is bound, and it."""

    def inner() -> int:
        return later + x

    text = fingerprint(inner)
    later = x
    return inner, text


def linear(weight: float) -> nn.Module:
    layer = nn.Linear(1, 1)
    for parameter in layer.parameters():
        nn.init.constant_(parameter, weight)
    return layer


def test_equal_things_have_the_same_fingerprint_and_others_another() -> None:
    first = [fingerprint(make()) for make in THINGS]
    assert first == [fingerprint(make()) for make in THINGS]
    assert len(set(first)) == len(first)
    assert all(len(text) == 64 for text in first)


def test_what_does_not_count_is_left_out() -> None:
    assert fingerprint(Settings(cache=[1])) == fingerprint(Settings())
    assert fingerprint({"a": 1, "b": 2}) == fingerprint({"b": 2, "a": 1})
    assert fingerprint(torch.ones(2, 3).T) == fingerprint(torch.ones(3, 2))
    itself: list[object] = []
    itself.append(itself)
    assert fingerprint(itself) == fingerprint(itself)


def test_what_is_not_bound_yet_is_no_obstacle() -> None:
    inner, text = unbound(1)
    assert len(text) == 64
    assert text != fingerprint(inner)


def test_a_fingerprint_is_the_same_in_another_process() -> None:
    code = (
        "import torch, functools, collections, numpy as np\n"
        "from neural_complexity.workspace import fingerprint\n"
        "class A: pass\n"
        "a = A(); a.x = {'q', 'w', 'e', 'r'}; a.y = np.array(['q', 1.5], dtype=object)\n"
        "print(fingerprint(a, lambda x: x in {'s', 't'}, functools.partial(torch.add, 1)))"
    )
    texts = {
        subprocess.run(
            [sys.executable, "-c", code], check=True, capture_output=True, text=True
        ).stdout
        for _ in range(2)
    }
    assert len(texts) == 1


CODE = """
import torch
from torch import nn
from torch.nn import functional as F

LAYER, NAMED = nn.ReLU, {"layer": nn.ReLU}

class Net(nn.Module):
    rate = 0.1

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(1, 4), nn.Linear(4, 1)

    def forward(self, X):
        return self.last(F.dropout(F.relu(self.first(X)), self.rate, self.training))

class Own(Net):
    pass

def activation(X):
    return [F.relu(x) for x in X]

def helper():
    return activation

def itself():
    return itself() if LAYER else helper()

def inner():
    return lambda: [LAYER() for _ in range(2)]

def enclosing():
    own = activation
    return lambda X: own(X)

THINGS = {
    "class": Net, "subclass": Own, "object": Own(), "method": Own().forward,
    "makes a class": lambda: Own(), "global": lambda: LAYER(), "in a dictionary": lambda: NAMED,
    "calls": lambda: helper(), "calls itself": itself, "inside": inner, "encloses": enclosing(),
    "default": lambda X, f=activation: f(X), "partial": __import__("functools").partial(helper),
}
"""


def written(code: str) -> dict[str, str]:
    """Returns the fingerprints of the code of things as written in a script."""
    script: dict[str, Any] = {"__name__": "script"}
    exec(code, script)
    return {name: fingerprint(users_code(thing)) for name, thing in script["THINGS"].items()}


def test_code_is_followed_to_all_that_users_wrote_of_it() -> None:
    before = written(CODE)
    assert written(CODE) == before
    assert written(f"# A line more.\n{CODE}") == before
    after = written(CODE.replace("relu", "tanh").replace("ReLU", "Tanh"))
    assert [name for name, text in before.items() if after[name] == text] == []
    changed = written(CODE.replace("rate = 0.1", "rate = 0.2"))
    others = {name for name, text in before.items() if changed[name] == text}
    assert others == set(before) - {"class", "subclass", "object", "method", "makes a class"}


def test_code_of_packages_is_told_by_its_names() -> None:
    assert users_code(nn.Linear(1, 1), torch.optim.Adam, np.mean, fingerprint, Workspace) == []


def test_a_part_is_done_once_and_kept(tmp_path: Path) -> None:
    calls: list[str] = []

    def work() -> dict[str, Tensor]:
        calls.append("work")
        return {"b": torch.tensor([1.0, 2.0], requires_grad=True), "a": torch.zeros(())}

    names = ("L2 (1)", "L2 1", "l2 (1)", "l2-1-")  # alike, but not the same
    for _ in range(2):  # the second time in a new session
        space = Workspace(tmp_path / "work", "x")
        for name in names:
            found = space.do(name, work)
            assert list(found) == ["a", "b"]
            assert found["b"].tolist() == [1.0, 2.0]
            assert not found["b"].requires_grad
        assert set(space.seconds) == set(names)
    assert len(calls) == len(names)
    assert (tmp_path / "work" / "l2-1-.safetensors").is_file()
    space.remove("l2-1-")
    assert space.read("l2-1-") is None


def test_without_a_folder_nothing_is_kept() -> None:
    space = Workspace(None)
    assert space.do("a", lambda: {"x": torch.ones(1)})["x"].tolist() == [1.0]
    space.write("b", {"x": torch.ones(1)})
    assert space.read("b") is None
    assert space.path("b") is None
    assert space.sub("c", 1).folder is None
    space.remove("b")


def test_tensors_and_values_come_back(tmp_path: Path) -> None:
    space = Workspace(tmp_path, "x")
    space.write("a", {"t": torch.arange(3)}, {"losses": [1.5, None], "name": "é"})
    space.write("nothing")
    found = space.read("a")
    assert found is not None
    assert found[0]["t"].tolist() == [0, 1, 2]
    assert found[1] == {"losses": [1.5, None], "name": "é"}
    assert space.read("nothing") == ({}, {})


def test_what_is_of_other_settings_or_damaged_is_refused(tmp_path: Path) -> None:
    Workspace(tmp_path, "x").write("a")
    with pytest.raises(ValueError, match="must be of the same settings, got one of others"):
        Workspace(tmp_path, "y").read("a")
    with pytest.raises(ValueError, match="must be of the same settings, got one of others"):
        Workspace(tmp_path, "y").do("a", dict)
    (tmp_path / "a.safetensors").write_bytes(b"x")
    with pytest.raises(ValueError, match="got a damaged one"):
        Workspace(tmp_path, "x").read("a")


def test_a_part_of_a_part_is_described_by_both(tmp_path: Path) -> None:
    space = Workspace(tmp_path, "x")
    assert space.sub("part").fingerprint == "x"
    assert space.sub("part", 1).fingerprint != space.sub("part", 2).fingerprint
    assert space.sub("part", 1).fingerprint != Workspace(tmp_path, "y").sub("part", 1).fingerprint
    space.sub("part", 1).write("a")
    assert (tmp_path / "part" / "a.safetensors").is_file()
    space.remove("part")
    assert not (tmp_path / "part").exists()


def test_damaged_content_of_files_without_checksums_is_named(tmp_path: Path) -> None:
    header = {"fingerprint": "mine", "content": '{"seconds" 1}'}
    (tmp_path / "a.safetensors").write_bytes(save({"t": torch.ones(1)}, header))
    with pytest.raises(ValueError, match="a.safetensors must hold JSON, got a damaged file"):
        Workspace(tmp_path, "mine").read("a")
    header = {"fingerprint": "mine", "content": "{}", "chedksum": "0"}  # a damaged name
    (tmp_path / "a.safetensors").write_bytes(save({"t": torch.ones(1)}, header))
    with pytest.raises(ValueError, match="a.safetensors must be unfinished work, got another file"):
        Workspace(tmp_path, "mine").read("a")
