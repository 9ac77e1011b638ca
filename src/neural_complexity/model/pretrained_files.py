"""NCs by where they are: a file of the user's, or a name of those that ship."""

from pathlib import Path

from neural_complexity.model.network import NeuralComplexity

__all__ = ["find_nc"]


def find_nc(name: str | Path) -> NeuralComplexity:
    """Loads an NC from a file, or one that ships with the package.

    Args:
        name: A path or a name.

    Raises:
        OSError: If it is a path and there is no such file.
        ValueError: If it is neither, or the file is no NC.
    """
    path = Path(name)
    if path.is_file() or path.suffix == ".safetensors" or isinstance(name, Path):
        return NeuralComplexity.load(path)
    known = NeuralComplexity.pretrained_names()
    if name not in known:
        raise ValueError(f"nc must be a safetensors file or one of {', '.join(known)}, got {name}")
    return NeuralComplexity.pretrained(name)
