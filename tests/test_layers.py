"""Data flows one way: a module imports its own layer or lower ones."""

import ast
from pathlib import Path

import neural_complexity

LAYERS = [
    {"seeding", "task", "snapshot", "losses", "files", "data"},
    {"predictions"},
    {"calibration"},
    {"bounds", "likeness"},
    {"tasks"},
    {"learners"},
    {"memory"},
    {"model"},
    {"export"},
    {"regularizers"},
    {"meta"},
    {"progress"},
    {"domain"},
    {"integrations"},
    {"experiments"},
    {"report"},
    {"assessment"},
    {"cli"},
]
# NC itself opens doors for users: its methods, not its module, may import these.
DOORS = {"assessment", "export"}
ROOT = Path(neural_complexity.__file__).parent


def layer(module: str) -> int:
    (found,) = (i for i, names in enumerate(LAYERS) if module in names)
    return found


def imported(node: ast.AST) -> list[str]:
    """Gives the modules of this package, by their first name, that a statement imports."""
    if isinstance(node, ast.Import):
        names = [alias.name for alias in node.names]
    elif isinstance(node, ast.ImportFrom):
        names = [f"{node.module}.{alias.name}" for alias in node.names]
    else:
        names = []
    return [name.split(".")[1] for name in names if name.startswith("neural_complexity.")]


def test_imports_respect_the_layers() -> None:
    files = [path for path in ROOT.rglob("*.py") if path != ROOT / "__init__.py"]
    assert len(files) > 20
    for path in files:
        own = layer(path.relative_to(ROOT).parts[0].removesuffix(".py"))
        tree = ast.parse(path.read_text())
        for node in ast.walk(tree):
            assert not (isinstance(node, ast.ImportFrom) and node.level), f"{path}: relative import"
            for module in imported(node):
                if path == ROOT / "model" / "complexity.py" and module in DOORS:
                    assert node not in tree.body
                    continue
                assert layer(module) <= own, f"{path} imports {module}"


def test_the_library_does_not_print() -> None:
    for path in ROOT.rglob("*.py"):
        if path.name in ("cli.py", "progress.py"):
            continue
        calls = [
            node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)
        ]
        assert not [c for c in calls if isinstance(c.func, ast.Name) and c.func.id == "print"], path
