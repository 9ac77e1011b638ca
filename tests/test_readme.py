import re
from pathlib import Path

import numpy as np
import pytest
import torch

ROOT = Path(__file__).parent.parent


def examples() -> list[str]:
    return re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)


def test_the_example_of_the_readme_runs_and_nc_helps(capsys: pytest.CaptureFixture[str]) -> None:
    torch.set_default_dtype(torch.float32)  # as users run it
    example = examples()[0]
    assert len([line for line in example.splitlines() if line.strip()]) <= 20
    exec(compile(example, "README.md", "exec"), {})
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
    exec(compile(examples()[1], "README.md", "exec"), {**names, **labels, **logits})
    assert len(re.findall("tensor", capsys.readouterr().out)) == 2


def test_the_example_of_one_dataset_runs_on_arrays(capsys: pytest.CaptureFixture[str]) -> None:
    generator = np.random.default_rng(0)
    labels = np.arange(200) % 3
    data = {"X_train": generator.random((200, 12, 12)), "y_train": labels}
    data |= {"X_test": generator.random((30, 12, 12)), "y_test": labels[:30]}
    exec(compile(examples()[2], "README.md", "exec"), data)
    assert capsys.readouterr().out == "torch.Size([4, 32, 1, 12, 12])\n"


def test_relative_links_of_the_documents_lead_somewhere() -> None:
    for document in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]:
        for link in re.findall(r"\]\(([^)#]+)[^)]*\)", document.read_text()):
            if "://" not in link:
                assert (document.parent / link).exists(), f"{document.name}: {link}"
