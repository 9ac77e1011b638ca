"""NC as an ONNX file, for programs that have no PyTorch."""

import copy
import logging
import warnings
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from neural_complexity.files import write_bytes
from neural_complexity.model.card import header

if TYPE_CHECKING:
    from neural_complexity.model.network import NeuralComplexity

__all__ = ["to_onnx"]

INPUTS, OUTPUTS = ("X_tr", "Y_tr", "H_tr", "X_te", "H_te"), ("gap", "points")


def to_onnx(nc: "NeuralComplexity", path: str | Path) -> None:
    """Writes an NC as an ONNX file, whole or not at all, and checks it against PyTorch.

    The file maps (X_tr, Y_tr, H_tr, X_te, H_te) to `gap`, (B,), and `points`, (B, N), for any B, M
    and N, and for any number of classes if NC treats them alike. It refuses nothing: labels out of
    range or NaN give numbers that mean nothing. Its metadata hold `format`, `version`,
    `architecture` and `provenance` as `NeuralComplexity.save` writes them.

    Raises:
        ImportError: If the extra `onnx` is not installed.
        TypeError: If NC is not float32: ONNX Runtime lacks much of the rest.
        ValueError: If PyTorch cannot export this NC, or the file gives other numbers than NC.
    """
    try:
        runtime = import_module("onnxruntime")
        import_module("onnxscript")
    except ImportError as error:
        raise ImportError(
            f"to_onnx must have the extra onnx, pip install 'neural-complexity[onnx]', got {error}"
        ) from None
    if nc.architecture.for_tables:
        raise ValueError("nc must be for inputs of one size for ONNX, got one for tables")
    if nc.x_mean.dtype != torch.float32:
        raise TypeError(f"nc must be torch.float32 for ONNX, got {nc.x_mean.dtype}")
    whole = _Whole(copy.deepcopy(nc)).cpu().eval().requires_grad_(False)
    content = _exported(whole)
    session = runtime.InferenceSession(content, providers=["CPUExecutionProvider"])
    for B, M, N, C in ((1, 1, 1, 2), (3, 4, 2, 9)):  # other sizes than it was exported with
        example = whole.example(B, M, N, C)
        its = session.run(None, {k: v.numpy() for k, v in zip(INPUTS, example, strict=True)})
        for name, a, b in zip(OUTPUTS, whole(*example), its, strict=True):
            difference = float((a - torch.from_numpy(b)).abs().max())
            # Far from its data attention by distance is steep, and rounding shows.
            if not difference <= 1e-2 * (1 + float(a.abs().max())):
                raise ValueError(f"{name} must be the same in ONNX, got {difference} apart")
    write_bytes(Path(path), content)


class _Whole(nn.Module):
    """All of NC as one map, without the checks of its arguments."""

    def __init__(self, nc: "NeuralComplexity") -> None:
        super().__init__()
        self.nc = nc

    def forward(
        self, X_tr: Tensor, Y_tr: Tensor, H_tr: Tensor, X_te: Tensor, H_te: Tensor
    ) -> tuple[Tensor, Tensor]:
        context = self.nc.encode(X_tr, Y_tr, X_te, classes=H_te.shape[-1])
        points = self.nc.points(context, H_tr, H_te)
        return points.mean(dim=1), points  # (B,), (B, N)

    def example(self, B: int, M: int, N: int, C: int) -> tuple[Tensor, ...]:
        """Draws learners on inputs in NC's units; C counts only where NC does not mind."""
        nc, C = self.nc, C if self.nc.symmetric else self.nc.outputs
        sizes = ((B, M, *nc.shape), (B, N, *nc.shape), (B, M, C), (B, M, C), (B, N, C))
        generator = torch.Generator().manual_seed(0)
        drawn = (torch.randn(size, generator=generator, dtype=torch.float32) for size in sizes)
        X_tr, X_te, Y_tr, H_tr, H_te = drawn
        X_tr, X_te = (X * nc.x_scale + nc.x_mean for X in (X_tr, X_te))
        return X_tr, Y_tr.argmax(dim=-1) if nc.labels else Y_tr, H_tr, X_te, H_te


def _exported(whole: _Whole) -> bytes:
    # No two sizes may be alike, or PyTorch takes them for one: B, M, N, C and an attention head's.
    nc, a = whole.nc, whole.nc.architecture
    example = whole.example(2, 3, 5, 11 if a.width // a.heads == 7 else 7)
    points, classes = {"tr": "M", "te": "N"}, {"H": {2: "C"}} if nc.symmetric else {}
    shapes = tuple({0: "B", 1: points[n[2:]], **classes.get(n[0], {})} for n in INPUTS)
    options: dict[str, Any] = {"dynamic_shapes": shapes, "dynamo": True, "verbose": False}
    logger = logging.getLogger("torch.onnx._internal.exporter._registration")
    before = logger.level
    logger.setLevel(logging.ERROR)  # it misses torchvision
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what PyTorch says to those who develop its exporter
            program = torch.onnx.export(
                whole, example, input_names=INPUTS, output_names=OUTPUTS, **options
            )
    except torch.onnx.errors.OnnxExporterError as error:
        reason = str(error).strip().splitlines()[-1]
        raise ValueError(f"nc must be one that PyTorch can export, got {reason}") from error
    finally:
        logger.setLevel(before)
    assert program is not None
    nc.card = replace(nc.card, learned_from="")  # says which points are in the training data
    program.model.metadata_props.update(header(nc))
    return program.model_proto.SerializeToString()  # type: ignore[no-any-return]
