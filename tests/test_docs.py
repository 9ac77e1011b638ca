"""The tutorials, the page for newcomers to the code and the examples do what they say.

Each page is followed literally: its blocks run one after another, in one namespace and in an empty
folder. What a page says comes out is compared with what came out. A comment in front of a block
changes how it is taken:

    <!-- output: 5 % -->     the numbers of this output may be off by as much (else 1 %)
    <!-- output: words -->   the words are compared, the numbers are not
    <!-- output: any -->     there is some output
    <!-- quick: a => b -->   tests run the next block with b in the place of a

Budgets of time become plans of a few seconds, and experiments run at preset smoke. NC is then no
good, and may say so.
"""

import io
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from contextlib import redirect_stdout
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from pkgutil import iter_modules
from types import ModuleType
from typing import Any

import pytest
import torch

import neural_complexity
from neural_complexity import NCClassifier
from neural_complexity.cli import main
from neural_complexity.meta import meta_run
from neural_complexity.meta.meta_run import Plan

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "docs" / "architecture.md", *sorted((ROOT / "docs" / "tutorials").glob("*.md"))]
PROSE = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    *sorted((ROOT / "docs").glob("*.md")),
    *PAGES[1:],
]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
QUICK = Plan(iterations=1, updates=2, learners=8, chosen_by=8)
NUMBER = r"[-+]?\d[\d,]*\.?\d*(?:e[-+]?\d+)?"


@dataclass(frozen=True)
class Block:
    kind: str  # python, bash, text, ...
    title: str  # the file that it is, if any
    notes: dict[str, str]
    text: str
    line: int


def blocks(page: str) -> Iterator[Block]:
    pattern = r"((?:^<!--[^\n]*-->\n+)*)^```(\w*)([^\n]*)\n(.*?)^```$"
    for found in re.finditer(pattern, page, re.DOTALL | re.MULTILINE):
        comments, kind, options, text = found.groups()
        notes = dict(
            (*note.split(":", 1), "")[:2] for note in re.findall(r"<!--\s*(.*?)\s*-->", comments)
        )
        title = re.search(r'title="([^"]+)"', options)
        line = page[: found.start(4)].count("\n")
        yield Block(kind, title.group(1) if title else "", notes, text, line)


def quick(text: str) -> str:
    """Makes code quick enough for a test."""
    return re.sub(r"budget=\"[^\"]+\"", "budget=QUICK", text)


def shortened(block: Block) -> str:
    text = quick(block.text)
    if "quick" in block.notes:
        old, new = (part.strip() for part in block.notes["quick"].split("=>"))
        assert old in text, f"line {block.line}: there is no {old} to be made quick"
        text = text.replace(old, new)
    return text


def run_python(text: str, name: str, names: dict[str, Any]) -> str:
    said = io.StringIO()
    with redirect_stdout(said):
        exec(compile(text, name, "exec"), names)
    return said.getvalue()


def run_commands(text: str) -> str:
    """Runs the lines that call us, or one of the page's own files."""
    said = io.StringIO()
    for command in text.replace("\\\n", " ").splitlines():
        words = shlex.split(command, comments=True)
        if words[:1] == ["neural-complexity"]:
            arguments = words[1:]
            if arguments[0] == "run" and "--resume" not in arguments:
                arguments = [*arguments, "--preset", "smoke"]
            with redirect_stdout(said):
                assert main(arguments) == 0, command
        elif words[:1] == ["python"]:
            line = [sys.executable, *words[1:]]
            done = subprocess.run(line, check=False, capture_output=True, text=True)
            assert done.returncode == 0, done.stderr
            said.write(done.stdout)
    return said.getvalue()


def compare(expected: str, said: str, how: str, where: str) -> None:
    assert said.strip(), f"{where}: nothing came out"
    if how == "any":
        return
    words, own = (" ".join(re.sub(NUMBER, "#", text).split()) for text in (expected, said))
    assert own == words, where
    if how == "words":
        return
    tolerance = float(how.removesuffix("%")) / 100
    for wanted, number in zip(*(re.findall(NUMBER, t) for t in (expected, said)), strict=True):
        a, b = (float(x.replace(",", "")) for x in (wanted, number))
        assert a == pytest.approx(b, rel=tolerance, abs=tolerance), f"{where}: {wanted}"


@pytest.fixture(autouse=True)
def as_users_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.set_default_dtype(torch.float32)
    monkeypatch.setattr(meta_run, "STEPS", 10)  # learners need not be good
    defaults = NCClassifier.__init__.__kwdefaults__
    assert defaults is not None
    monkeypatch.setitem(defaults, "steps", 20)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MPLBACKEND", "agg")
    monkeypatch.syspath_prepend(tmp_path)  # pages have modules of their own


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:NC could not be tested", "ignore:NC cannot beat")
# Lightning's own business.
@pytest.mark.filterwarnings("ignore:.*LeafSpec", "ignore:.*does not have many workers")
@pytest.mark.filterwarnings("ignore:The number of training batches")
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_tutorial_can_be_followed(page: Path, tmp_path: Path) -> None:
    names: dict[str, Any] = {"__name__": "__main__", "QUICK": QUICK}
    said = ""
    for block in blocks(page.read_text()):
        where = f"{page.name}, line {block.line}"
        if block.title:
            (tmp_path / block.title).write_text(shortened(block))
        elif block.kind == "python":
            said = run_python(shortened(block), where, names)
        elif block.kind == "bash":
            said = run_commands(shortened(block))
        elif block.kind == "text":
            compare(block.text, said, block.notes.get("output", "1 %").strip(), where)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:NC could not be tested", "ignore:NC cannot beat")
@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.stem)
def test_an_example_runs(example: Path) -> None:
    names = {"__name__": "__main__", "QUICK": QUICK}
    said = run_python(quick(example.read_text()), example.name, names)
    assert said.strip()


def test_every_public_name_is_in_the_reference() -> None:
    reference = "".join(page.read_text() for page in (ROOT / "docs" / "api").glob("*.md"))
    for name in neural_complexity.__all__:
        value = getattr(neural_complexity, name)
        named = name if callable(value) and hasattr(value, "__name__") else type(value).__name__
        assert re.search(rf"^::: neural_complexity\.(\w+\.)*{named}$", reference, re.MULTILINE), (
            name
        )


def exists(name: str) -> bool:
    """Whether a dotted name of the documents is a module of ours, or something in one."""
    module, *rest = name.split(".")
    found: object = import_module(f"neural_complexity.{module}")
    for part in rest:
        path = f"{getattr(found, '__name__', '')}.{part}"
        if isinstance(found, ModuleType) and hasattr(found, "__path__") and find_spec(path):
            found = import_module(path)
        elif hasattr(found, part):
            found = getattr(found, part)
        else:
            return part in getattr(found, "__dataclass_fields__", {})
    return True


@pytest.mark.parametrize("page", PROSE, ids=lambda page: page.stem)
def test_modules_and_files_that_a_page_names_exist(page: Path) -> None:
    source = Path(neural_complexity.__file__).parent
    own = {module.name for module in iter_modules(neural_complexity.__path__)}
    for words in re.findall(r"`([^`\n]+)`", page.read_text()):
        dotted = re.match(r"(?:neural_complexity\.)?([a-z_]+(?:\.\w+)+)", words)
        if re.fullmatch(r"[\w/]+\.py", words):
            assert (source / words).exists() or (ROOT / words).exists(), words
        elif dotted and dotted.group(1).split(".")[0] in own:
            assert exists(dotted.group(1)), words


def test_what_the_reference_documents_exists() -> None:
    for page in (ROOT / "docs" / "api").glob("*.md"):
        for name in re.findall(r"^::: neural_complexity\.(\S+)$", page.read_text(), re.MULTILINE):
            assert name in neural_complexity.__all__ or exists(name), f"{page.name}: {name}"


def test_blocks_are_found_with_their_notes() -> None:
    page = (
        "<!-- quick: 60 => 2 -->\n```python\nprint(60)\n```\n\nsay\n\n"
        '<!-- output: 5 % -->\n\n```text\n60\n```\n```python title="a.py"\n```\n'
    )
    code, output, file = blocks(page)
    assert run_python(shortened(code), "", {}) == "2\n"
    assert (output.kind, output.notes) == ("text", {"output": " 5 %"})
    assert (file.title, file.line) == ("a.py", 13)


@pytest.mark.parametrize(("how", "fails"), [("1 %", True), ("5 %", False), ("words", False)])
def test_outputs_are_compared_as_told(how: str, fails: bool) -> None:
    compare("gap 1,000.0", "gap  1000.5\n", how, "here")
    if fails:
        with pytest.raises(AssertionError):
            compare("gap 1.00", "gap 1.04", how, "here")
    else:
        compare("gap 1.00", "gap 1.04", how, "here")
    for said in ("", "loss 1.00"):
        with pytest.raises(AssertionError):
            compare("gap 1.00", said, how, "here")
