"""The rules of the house (docs/architecture.md), read off the source."""

import ast
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

import neural_complexity
from neural_complexity.experiments.base.experiment import experiment_names
from neural_complexity.model.heads import HEADS

ROOT = Path(neural_complexity.__file__).parent
TESTS = Path(__file__).parent
# A module imports its own layer or lower ones.
LAYERS = [
    {"seeding", "locks", "points", "cores", "entry"},
    {"files", "beliefs"},
    {"task", "losses", "workspace", "progress"},
    {"snapshot", "ledger"},
    {"convert"},
    {"tasks", "learners", "reliability"},
    {"model"},
    {"regularizers"},
    {"meta"},
    {"baselines", "assessment", "integrations"},
    {"experiments"},
    {"cli"},  # which loads the next one when it knows what is asked for
    {"commands"},
]
MODULES = sorted(path for path in ROOT.rglob("*.py") if path.name != "__init__.py")
# Packages that only an extra installs, or that are slow to import and seldom needed.
EXTRAS = {"lightning", "onnx", "onnxruntime", "onnxscript", "pyarrow", "tensorboard"}
EXTRAS |= {"distributed", "ray", "torch.utils.tensorboard"}
BELIEFS = {"Belief", "Gaussian", "Categorical", "Head", "PosteriorHead", "DirectHead", "Sets"}
# The only ones that step an optimizer, and the loop of a user that experiments are about.
LOOPS = {"learners/fit.py", "meta/optimize.py", "experiments/base/plain_loop.py"}
# scikit-learn sets the parameters of estimators; a history grows while a module is built.
MUTABLE = {"_NCEstimator", "_History"}

modules = pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(ROOT)))


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def functions(path: Path) -> Iterator[ast.FunctionDef]:
    return (node for node in ast.walk(tree(path)) if isinstance(node, ast.FunctionDef))


def name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def layer(module: str) -> int:
    (found,) = (i for i, names in enumerate(LAYERS) if module in names)
    return found


def imported(node: ast.AST) -> list[str]:
    """Returns the modules that a statement imports."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        assert not node.level, "relative import"
        return [f"{node.module}.{alias.name}" for alias in node.names]
    return []


def called(node: ast.AST) -> str:
    """Returns the last name of what is called, if anything is."""
    if not isinstance(node, ast.Call):
        return ""
    return getattr(node.func, "attr", getattr(node.func, "id", ""))


@modules
def test_imports_respect_the_layers_and_stand_at_the_top(path: Path) -> None:
    own = layer(path.relative_to(ROOT).parts[0].removesuffix(".py"))
    for node in ast.walk(tree(path)):
        for module in imported(node):
            parts = module.split(".")
            inside = parts[0] == "neural_complexity" and len(parts) > 1
            if inside and node in tree(path).body:
                same = parts[1] == path.relative_to(ROOT).parts[0].removesuffix(".py")
                assert same or layer(parts[1]) < own, f"{name(path)} imports {module}"
            if isinstance(node, ast.Import | ast.ImportFrom) and not at_top(path, node):
                assert EXTRAS & {parts[0], ".".join(parts[:3])}, f"{module} inside {name(path)}"


def at_top(path: Path, node: ast.AST) -> bool:
    """Whether a statement is not part of a function."""
    return not any(node in ast.walk(function) for function in functions(path))


@modules
def test_modules_list_what_others_import(path: Path) -> None:
    for node in ast.walk(tree(path)):
        for imports in imported(node):
            home, _, wanted = imports.rpartition(".")
            source = ROOT.parent.joinpath(*home.split(".")).with_suffix(".py")
            if source in MODULES:
                lists = [
                    ast.literal_eval(statement.value)
                    for statement in tree(source).body
                    if isinstance(statement, ast.Assign | ast.AugAssign)
                    and "__all__" in ast.unparse(statement).split("=")[0]
                ]
                assert any(wanted in some for some in lists), f"{imports}, in {name(path)}"


@modules
def test_heads_and_beliefs_are_not_told_apart_by_their_types(path: Path) -> None:
    if name(path).startswith("model/heads/") or name(path) == "losses.py":
        return
    for node in ast.walk(tree(path)):
        if called(node) == "isinstance":
            assert isinstance(node, ast.Call)
            asked = {n.id for n in ast.walk(node.args[1]) if isinstance(n, ast.Name)}
            assert not asked & BELIEFS, f"line {node.lineno}"


@modules
def test_functions_are_short_and_take_settings_whole(path: Path) -> None:
    for function in functions(path):
        where = f"{function.name}, line {function.lineno}"
        every = [*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs]
        own = [arg for arg in every if arg.arg not in ("self", "cls")]
        flags = [arg for arg in own if isinstance(arg.annotation, ast.Name)]
        assert len(own) <= 8, f"{where}: {len(own)} parameters"
        assert sum(arg.annotation.id == "bool" for arg in flags) <= 2, where  # type: ignore[union-attr]
        assert function.end_lineno is not None
        assert function.end_lineno - function.lineno < 60, f"{where}: too long"


@modules
def test_modules_are_one_idea(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= 350


@modules
def test_every_module_has_a_test_of_its_own(path: Path) -> None:
    own = path.relative_to(ROOT)
    assert (TESTS / own.parent / f"test_{own.name}").is_file()


@modules
def test_optimizers_step_in_two_places(path: Path) -> None:
    makes = {"Adam", "AdamW", "SGD", "backward"}
    calls = {called(node) for node in ast.walk(tree(path))} & makes
    assert not calls or name(path) in LOOPS, calls


@modules
def test_only_the_command_line_prints(path: Path) -> None:
    if path.name not in ("cli.py", "commands.py", "progress.py"):
        calls = [node.func for node in ast.walk(tree(path)) if isinstance(node, ast.Call)]
        assert "print" not in {call.id for call in calls if isinstance(call, ast.Name)}


def test_names_of_modules_are_unique() -> None:
    names = Counter(path.name for path in MODULES)
    assert [name for name, count in names.items() if count > 1] == []


def test_settings_are_frozen() -> None:
    for path in MODULES:
        for node in ast.walk(tree(path)):
            if isinstance(node, ast.ClassDef):
                for decorator in node.decorator_list:
                    if (
                        called(decorator) == "dataclass"
                        or getattr(decorator, "id", "") == "dataclass"
                    ):
                        frozen = isinstance(decorator, ast.Call) and any(
                            k.arg == "frozen" for k in decorator.keywords
                        )
                        assert frozen or node.name in MUTABLE, f"{node.name} in {name(path)}"


def test_a_new_file_is_a_new_head_and_a_new_experiment() -> None:
    heads = {path.stem for path in (ROOT / "model" / "heads").glob("[!_]*.py")} - {"base"}
    assert heads == set(HEADS)
    experiments = {path.stem for path in (ROOT / "experiments").glob("[!_]*.py")}
    assert experiments == set(experiment_names())
