import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

ROOT = Path(__file__).parent.parent


def example(word: str) -> str:
    """Returns the first example of the README that has the word in it."""
    every: list[str] = re.findall(
        r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL
    )
    return next(text for text in every if word in text)


def run(text: str, names: dict[str, Any]) -> dict[str, Any]:
    exec(compile(text, "README.md", "exec"), names)
    return names


def test_the_example_of_assess_runs_and_is_right(capsys: pytest.CaptureFixture[str]) -> None:
    torch.set_default_dtype(torch.float32)  # as users run it
    found = run(example("= assess("), {})
    assert "gap" in capsys.readouterr().out
    shares = found["forest"].predict_proba(found["X_te"])
    true = -np.log(np.clip(shares[np.arange(360), found["y_te"]], 1e-7, 1)).mean()
    assert abs(found["report"].loss_te - true) < 0.05 * true
    right = found["forest"].score(found["X_te"], found["y_te"])
    assert abs(found["report"].accuracy_te - right) < 0.01


@pytest.mark.filterwarnings("ignore:NC c", "ignore:A budget of")
def test_the_examples_of_meta_learning_and_of_the_regularizer_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.set_default_dtype(torch.float32)
    monkeypatch.chdir(tmp_path)
    random = np.random.default_rng(0)
    labels = np.arange(60) % 2
    text = example("split_tasks").replace('"10min"', "0.5")
    names = run(text, {"X": random.normal(size=(60, 2)) + labels[:, None], "y": labels})
    assert (tmp_path / "my-domain.safetensors").exists()
    x = torch.randn(16, 2)
    data = {"x": x, "labels": torch.arange(16) % 2, "x_unlabelled": x + 1}
    names = run(example("penalty"), {**names, **data, "torch": torch, "model": nn.Linear(2, 2)})
    names["loss"].backward()
    assert names["model"].weight.grad.isfinite().all()


def test_the_example_of_the_readme_runs_and_nc_helps(capsys: pytest.CaptureFixture[str]) -> None:
    torch.set_default_dtype(torch.float32)  # as users run it
    text = example("Sinusoids")
    assert len([line for line in text.splitlines() if line.strip()]) <= 20
    run(text, {})
    output = capsys.readouterr().out
    predicted, true, plain, with_nc = (float(x) for x in re.findall(r"-?\d+\.\d+", output))
    assert abs(predicted - true) < 0.1 * abs(true)
    assert with_nc < 0.8 * plain


def test_the_example_of_images_runs_on_drawings_of_any_size(
    capsys: pytest.CaptureFixture[str],
) -> None:
    torch.set_default_dtype(torch.float32)
    paper = torch.full((2, 7, 50, 60), 255, dtype=torch.uint8)
    names = {"drawings": paper[:, :4], "unlabelled": paper[:, 4:]}
    labels = {"Y_tr": torch.tensor([[0, 1, 2, 2]] * 2)}
    logits = {"H_tr": torch.randn(2, 4, 3), "H_te": torch.randn(2, 3, 3)}
    run(example("omniglot"), {**names, **labels, **logits})
    assert len(re.findall("tensor", capsys.readouterr().out)) == 2


def test_the_example_of_one_dataset_runs_on_arrays(capsys: pytest.CaptureFixture[str]) -> None:
    generator = np.random.default_rng(0)
    labels = np.arange(200) % 3
    data = {"X_train": generator.random((200, 12, 12)), "y_train": labels}
    data |= {"X_test": generator.random((30, 12, 12)), "y_test": labels[:30]}
    run(example("from_arrays"), data)
    assert capsys.readouterr().out == "torch.Size([4, 32, 1, 12, 12])\n"


def test_relative_links_of_the_documents_lead_somewhere() -> None:
    for document in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]:
        for link in re.findall(r"\]\(([^)#]+)[^)]*\)", document.read_text()):
            if "://" not in link:
                assert (document.parent / link).exists(), f"{document.name}: {link}"
