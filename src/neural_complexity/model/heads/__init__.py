"""The heads of NC, one file each; a new file in this folder is a new head."""

from importlib import import_module
from pkgutil import iter_modules

from neural_complexity.model.heads.base import Head, Sets

__all__ = ["HEADS", "Head", "Sets"]

for _module in iter_modules(__path__):
    import_module(f"{__name__}.{_module.name}")

HEADS: dict[str, type[Head]] = {head.name: head for head in Head.__subclasses__()}
