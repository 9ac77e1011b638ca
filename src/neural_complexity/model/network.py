"""Neural Complexity: predicts the generalization gap of learners it has never seen."""

from collections.abc import Mapping, Sequence
from importlib import import_module, resources
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from neural_complexity.beliefs import Belief
from neural_complexity.losses import LOSSES, Loss, cross_entropy, squared_error, zero_one
from neural_complexity.model.architecture import Architecture
from neural_complexity.model.card import Card, read_nc, write_nc
from neural_complexity.model.encoders import make_image_encoder
from neural_complexity.model.export import to_onnx
from neural_complexity.model.heads import HEADS, Context, Head, Sets
from neural_complexity.model.shipped import SHIPPED
from neural_complexity.points import map_inputs, values
from neural_complexity.reliability.calibration import Calibration
from neural_complexity.snapshot import Snapshot
from neural_complexity.task import Task

if TYPE_CHECKING:
    from neural_complexity.assessment.result import Assessment

__all__ = ["Context", "NeuralComplexity", "find_nc"]

CALIBRATION = 2048  # images that the statistics of an image encoder are taken from


class NeuralComplexity(nn.Module):
    """NC: maps (X_tr, Y_tr, H_tr, X_te, H_te) to a predicted gap, whatever the order of the points.

    Args:
        inputs: Input features, D, or channels, height and width of an image.
        outputs: Outputs or classes, C.
        fields: The other fields of `Architecture`, such as `head="direct"` or `width=256`.

    Raises:
        ValueError: If the fields are no architecture.
    """

    x_mean: Tensor  # (D,), or (channels, 1, 1)
    x_scale: Tensor  # as x_mean
    y_mean: Tensor  # (C,)
    y_scale: Tensor  # (C,)

    def __init__(self, inputs: int | Sequence[int], outputs: int, **fields: Any) -> None:
        super().__init__()
        a = Architecture(**{"inputs": inputs, "outputs": outputs, **fields})
        if a.head not in HEADS:
            raise ValueError(f"head must be one of {', '.join(HEADS)}, got {a.head}")
        self.architecture, self.loss, self.labels = a, LOSSES[a.loss], LOSSES[a.loss].labels
        self.outputs, self.shape = a.outputs, () if a.for_tables else a.shape
        self.symmetric = a.symmetric or a.for_tables  # whether labels may be of any classes
        self.image_encoder = make_image_encoder(a) if len(a.shape) == 3 else None
        features = a.shape[0] if self.image_encoder is None else self.image_encoder.features
        self.head: Head = HEADS[a.head](a, features)
        self.card = Card()
        # How far NC was off on held-out learners, which bounds need; saved with the weights, too.
        self.calibration: Calibration | None = None
        x_size = a.shape if len(a.shape) == 1 else (a.shape[0], 1, 1)
        x_size = (1,) if a.for_tables else x_size  # features are any, and in any unit
        for name, size in (("x", x_size), ("y", (outputs,))):
            self.register_buffer(f"{name}_mean", torch.zeros(size))
            self.register_buffer(f"{name}_scale", torch.ones(size))

    @property
    def provenance(self) -> Mapping[str, Any]:
        """What made the weights, as its file has it; `card` has the same, typed."""
        return MappingProxyType(self.card.to_json())

    @property
    def device(self) -> torch.device:
        """Where NC is."""
        return self.x_mean.device

    @classmethod
    def for_tasks(cls, task: Task, **fields: Any) -> "NeuralComplexity":
        """Returns an untrained NC whose units fit a sample of tasks.

        Args:
            task: Some tasks, from which dimensions, centres, scales and the loss follow.
            fields: Any field of `Architecture`; `outputs`, too, if the tasks lack some classes.

        Raises:
            ValueError: If the fields are no architecture.
        """
        X, Y = values(task.X_tr), task.Y_tr
        usual = squared_error if Y.is_floating_point() else cross_entropy
        fields = {"loss": usual.name, **fields}
        loss, head = LOSSES.get(fields["loss"]), HEADS.get(fields.get("head", "posterior"))
        own: dict[str, Any] = {"outputs": Y.shape[-1]}
        if loss is not None and loss.labels:  # labels say how many classes there are at least
            own = {"outputs": int(max(Y.max(), task.Y_te.max())) + 1}
            own |= {} if head is None or fields.get("for_tables") else head.for_labels
        nc = cls(X.shape[2:] if X.ndim == 5 else X.shape[-1], **own | fields)
        flat = X.flatten(0, -4).transpose(0, 1).flatten(1).T if X.ndim == 5 else X.flatten(0, -2)
        units = [(nc.x_mean, nc.x_scale, flat), (nc.y_mean, nc.y_scale, Y.flatten(0, -2))]
        units = [] if nc.architecture.for_tables else units  # each table has its own
        for mean, scale, seen in units:
            if seen.is_floating_point():
                std, centre = torch.std_mean(seen, dim=0, correction=0)
                mean.copy_(centre.view_as(mean))
                scale.copy_(torch.where(std > 0, std, 1.0).view_as(scale))  # a constant has none
        if nc.image_encoder is not None:
            nc.image_encoder.calibrate(nc._x(X.flatten(0, 1)[:CALIBRATION]))
        return nc

    def take_image_encoder(self, other: "NeuralComplexity") -> None:
        """Copies the image encoder of a trained NC, and freezes it.

        Layers that say which images are alike are copied, too, if both have them in one size.

        Raises:
            ValueError: If one has no image encoder, or they differ in size.
        """
        sizes = ("inputs", "channels", "image_layers", "image_encoder")
        own, its = ([getattr(nc.architecture, name) for name in sizes] for nc in (self, other))
        if self.image_encoder is None or other.image_encoder is None or own != its:
            wanted = "the same inputs, channels and layers"
            raise ValueError(f"the image encoders must have {wanted}, got {own} and {its}")
        self.image_encoder.load_state_dict(other.image_encoder.state_dict())
        self.image_encoder.requires_grad_(False)
        self.x_mean.copy_(other.x_mean)
        self.x_scale.copy_(other.x_scale)
        self.head.network.take_metric(other.head.network)

    def embed(self, X: Tensor) -> Tensor:
        """Embeds inputs, (..., D) or images, as (..., features), each by itself and without h."""
        X = self._x(X)
        return X if self.image_encoder is None else self.image_encoder(X)

    def encode(
        self, X_tr: Tensor, Y_tr: Tensor, X_te: Tensor, *, classes: int | None = None
    ) -> Context:
        """Does all work that does not depend on h; labels are of NC's own classes if `None`."""
        E_tr, E_te = map_inputs(self.embed, X_tr, X_te)
        return self.context(E_tr, Y_tr, E_te, classes=classes)

    def context(
        self, E_tr: Tensor, Y_tr: Tensor, E_te: Tensor, *, classes: int | None = None
    ) -> Context:
        """Does what `encode` does, from embeddings, (B, M, features) and (B, N, features)."""
        T_tr = self.targets(Y_tr, classes=classes)
        T_tr = T_tr if self.labels else (T_tr - self.y_mean) / self.y_scale
        sets = Sets(E_tr, T_tr, E_te, Y_tr, self.y_mean, self.y_scale)
        return Context(Y_tr, self.head.encode(sets))

    def targets(self, Y: Tensor, *, classes: int | None = None) -> Tensor:
        """Returns targets as numbers, (B, M, C): labels, (B, M), as ones and zeros."""
        if classes is None and self.labels and self.architecture.for_tables:
            classes = int(Y.max()) + 1 if Y.numel() else 1
        return self.loss.encode(Y, classes or self.outputs, self.x_mean.dtype)

    def losses(self, context: Context, H_tr: Tensor, H_te: Tensor) -> Tensor:
        """Predicts the loss of each test point, (B, N), from h's predictions at the context's."""
        return self.head.losses(context.state, H_tr, H_te)

    def points(self, context: Context, H_tr: Tensor, H_te: Tensor) -> Tensor:
        """Predicts per test point its loss minus the training loss, (B, N); see `losses`."""
        loss_tr = self.loss(H_tr, context.Y_tr).mean(dim=1, keepdim=True)  # (B, 1)
        return self.losses(context, H_tr, H_te) - loss_tr

    def belief(
        self, X_tr: Tensor, Y_tr: Tensor, X_te: Tensor, *, classes: int | None = None
    ) -> Belief:
        """Returns p(y | x, S) at the test points; see `predict_points`, and `check` on `classes`.

        Raises:
            ValueError: Also if the head has no belief.
        """
        self.check(classes=classes, X_tr=X_tr, Y_tr=Y_tr, X_te=X_te)
        return self.believe(self.encode(X_tr, Y_tr, X_te, classes=classes))

    def believe(self, context: Context) -> Belief:
        """Returns the belief of a context; refuses if the head has none."""
        belief = self.head.belief(context.state)
        if belief is None:
            got = f"the {self.head.name} head, which has none"
            raise ValueError(f"a belief needs the posterior head, got {got}")
        return belief

    def predict_points(
        self, X_tr: Tensor, Y_tr: Tensor, H_tr: Tensor, X_te: Tensor, H_te: Tensor
    ) -> Tensor:
        """Predicts per test point its loss minus the training loss, (B, N).

        Args:
            X_tr: Training inputs, (B, M, D) or (B, M, channels, height, width).
            Y_tr: Training targets, (B, M, C), or labels, (B, M).
            H_tr: The learners' predictions on training inputs, (B, M, C).
            X_te: Test inputs, (B, N, ...).
            H_te: The learners' predictions on test inputs, (B, N, C).

        Raises:
            TypeError: As by `check`.
            ValueError: Likewise.
        """
        self.check(X_tr=X_tr, Y_tr=Y_tr, H_tr=H_tr, X_te=X_te, H_te=H_te)
        found = self.points(self.encode(X_tr, Y_tr, X_te, classes=H_te.shape[-1]), H_tr, H_te)
        if not (torch.compiler.is_compiling() or found.isfinite().all()):
            raise ValueError("points must be of a size that NC can compute with, got larger ones")
        return found

    def predict(
        self, X_tr: Tensor, Y_tr: Tensor, H_tr: Tensor, X_te: Tensor, H_te: Tensor
    ) -> Tensor:
        """Predicts the generalization gap, NC(h) of section 3.3, (B,); see `predict_points`."""
        return self.predict_points(X_tr, Y_tr, H_tr, X_te, H_te).mean(dim=1)

    def predict_loss(
        self,
        X_tr: Tensor,
        Y_tr: Tensor,
        H_tr: Tensor,
        X_te: Tensor,
        H_te: Tensor,
        *,
        loss: Loss | None = None,
    ) -> Tensor:
        """Predicts the test loss, training loss plus predicted gap, (B,); see `predict_points`.

        Another `loss` than NC's own, as `losses.absolute_error`, is expected under NC's belief.
        """
        if loss is None:
            return self.predict(X_tr, Y_tr, H_tr, X_te, H_te) + self.loss(H_tr, Y_tr).mean(dim=1)
        self.check(X_tr=X_tr, Y_tr=Y_tr, H_tr=H_tr, X_te=X_te, H_te=H_te)
        if loss.labels != self.labels:
            wanted, got = ("labels", "real targets")[:: 1 if loss.labels else -1]
            raise ValueError(f"{loss.name} needs {wanted}, got an NC for {got}")
        belief = self.believe(self.encode(X_tr, Y_tr, X_te, classes=H_te.shape[-1]))
        return loss.expected(H_te, belief).mean(dim=1)

    def predict_accuracy(
        self, X_tr: Tensor, Y_tr: Tensor, H_tr: Tensor, X_te: Tensor, H_te: Tensor
    ) -> Tensor:
        """Predicts the accuracy from beliefs in labels, (B,); see `predict_loss`."""
        if not self.labels:
            raise ValueError("an accuracy needs labels, got an NC for real targets")
        return 1 - self.predict_loss(X_tr, Y_tr, H_tr, X_te, H_te, loss=zero_one)

    def calibrate(self, held_out: Sequence[tuple[Snapshot, Tensor]]) -> None:
        """Measures how far NC is off on learners it has not seen, and keeps it in `calibration`.

        From it, `reliability.gap_bounds.bound` bounds the gap of a new learner. It must be like
        these: the same kind of tasks, learners and set sizes.

        Args:
            held_out: Learners, each on a held-out task of its own, so that they are independent,
                and their test targets, (B, N, C), or labels, (B, N); sets of one size together.

        Raises:
            ValueError: As by `check`, or if all learners diverged; some are left out.
        """
        above = import_module("neural_complexity.model.judgement")
        self.calibration = above.measure(self, held_out)

    def assess(
        self, model: Any, X_tr: object, y_tr: object = None, X_te: object = None, **options: Any
    ) -> "Assessment":
        """Predicts how badly a trained model of any kind generalizes, and where.

        Args:
            model: A callable, a module or a fitted scikit-learn estimator.
            X_tr: Training inputs: an array, a tensor, nested lists or a data frame; or a `Dataset`
                or `DataLoader` of pairs (x, y), and then y_tr is `None`.
            y_tr: Training targets.
            X_te: Test inputs, which need no labels.
            options: `classes`, `confidence` and `method` of `assessment.assess.assess`.
        """
        above = import_module("neural_complexity.assessment.assess")
        return above.assess(model, X_tr, y_tr, X_te, nc=self, **options)  # type: ignore[no-any-return]

    def to_onnx(self, path: str | Path) -> None:
        """Writes NC as an ONNX file, for programs without PyTorch; see `model.export.to_onnx`."""
        to_onnx(self, path)

    def save(self, path: str | Path) -> None:
        """Writes weights, architecture, units, calibration and provenance to one file, at once."""
        write_nc(Path(path), self)

    @classmethod
    def load(cls, path: str | Path) -> "NeuralComplexity":
        """Reads an NC from a safetensors file; runs no code from it.

        Raises:
            FileNotFoundError: If there is no such file.
            ValueError: If the file is damaged, of another kind, or newer than this library.
        """
        return read_nc(Path(path), cls)

    @classmethod
    def pretrained(cls, name: str) -> "NeuralComplexity":
        """Loads an NC that ships with the package.

        Args:
            name: One of `pretrained_names`. Those on sinusoids are made by experiment `sinusoid`,
                preset `cpu`, those on characters by experiment `omniglot`, and see images made
                by `tasks.omniglot_files.preprocess`, those for tables by `pretraining`.

        Raises:
            ValueError: If none of that name ships.
        """
        if name not in SHIPPED:
            raise ValueError(f"name must be one of {', '.join(SHIPPED)}, got {name}")
        folder = resources.files("neural_complexity") / "pretrained"
        with resources.as_file(folder / f"{name}.safetensors") as path:
            return cls.load(path)

    @staticmethod
    def pretrained_names() -> dict[str, str]:
        """Returns the names of the NCs that ship, each with a line on its tasks.

        Example:
            >>> NeuralComplexity.pretrained_names()["sinusoid"]
            'regression of sinusoids from about ten points; posterior head'
        """
        return dict(SHIPPED)

    def check(self, *, classes: int | None = None, **tensors: Tensor) -> None:
        """Refuses what NC cannot judge, before it returns a number that looks like an answer.

        Args:
            classes: Of labels; if `None`, as many as the predictions have, or else NC's own.
            tensors: Any of those of `predict_points`, by name; `Y_te`, too.

        Raises:
            TypeError: If something is not a tensor of NC's own type, or labels are not int64.
            ValueError: If shapes disagree, or a value is not finite or no label.
        """
        self.architecture.check(self.x_mean.dtype, classes, tensors)

    def _x(self, X: Tensor) -> Tensor:
        scaled, clip = (X - self.x_mean) / self.x_scale, self.architecture.clip
        return scaled.clamp(-clip, clip) if clip else scaled


def find_nc(name: str | Path) -> NeuralComplexity:
    """Loads an NC from a file, or one that ships with the package, by path or name."""
    path, names = Path(name), ", ".join(SHIPPED)
    if path.is_file() or path.suffix == ".safetensors" or isinstance(name, Path):
        return NeuralComplexity.load(path)
    if name not in SHIPPED:
        raise ValueError(f"nc must be a safetensors file or one of {names}, got {name}")
    return NeuralComplexity.pretrained(name)
