"""Neural Complexity: predicts the generalization gap of learners it has never seen."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import log_softmax, softplus

from neural_complexity.files import read_tensors, write_tensors
from neural_complexity.losses import (
    LOSSES,
    Belief,
    Gaussian,
    cross_entropy,
    squared_error,
    zero_one,
)
from neural_complexity.model.encoders import make_image_encoder
from neural_complexity.model.heads import DirectHead, PosteriorHead, SetNetwork, Sets
from neural_complexity.reliability.bounds import Method
from neural_complexity.reliability.calibration import Calibration
from neural_complexity.snapshot import Snapshot
from neural_complexity.task import Task, check_sets

if TYPE_CHECKING:
    from neural_complexity.assessment.result import Assessment

__all__ = ["Context", "NeuralComplexity"]

FORMAT = "neural-complexity"
VERSION = 2
READABLE = (1, 2)  # version 1 knew no calibration
CALIBRATED = "calibration."  # what the names of a calibration's tensors start with
# What we found to work for labels (docs/deviations.md); `for_tasks` starts from these.
FOR_LABELS: dict[str, dict[str, Any]] = {
    "posterior": {"symmetric": True, "bilinear": True, "metric": True, "rounds": 3, "vote": True},
    "direct": {
        "bilinear": True,
        "loss_conditioning": True,
        "self_layers": 1,
        "metric": True,
        "rounds": 3,
    },
}
# What the NCs in the folder `pretrained` judge.
SHIPPED = {
    "digits": "scikit-learn's digits, as 64 pixels from 0 to 1; posterior head, calibrated",
    "omniglot": "drawn characters of any classes, few images of each; posterior head",
    "omniglot-direct": "drawn characters of ten classes, few images of each; the paper's head",
    "sinusoid": "regression of sinusoids from about ten points; posterior head",
    "sinusoid-direct": "regression of sinusoids from about ten points; the paper's head",
}
SHOWN = 256  # training points that an NC sees at once if it does not say what it is used to
CALIBRATION = 2048  # images that the statistics of an image encoder are taken from


@dataclass(frozen=True)
class Context:
    """Everything about B tasks that NC needs to judge any h on them."""

    Y_tr: Tensor  # (B, M, C), or labels, (B, M)
    known: Sets | Belief  # what the head makes of it before it sees h


class NeuralComplexity(nn.Module):
    """NC: maps (X_tr, Y_tr, H_tr, X_te, H_te) to a predicted gap, whatever the order of the points.

    Args:
        inputs: Input features, D, or channels, height and width of an image.
        outputs: Outputs or classes, C. A symmetric NC answers for any other number of classes too.
        head: `"posterior"` (ours) believes p(y | x, S) and computes the expected loss of h in
            closed form; `"direct"` (the paper's) lets the network see (x, h(x)) and answer by
            itself.
        loss: The name of the loss whose gap is predicted; with `"cross_entropy"` targets are
            labels.
        width: The width d of every layer.
        heads: Attention heads.
        encoder_layers: Linear layers of the encoder, n_enc.
        decoder_layers: Linear layers of the decoder, n_dec.
        query_skip: Whether the decoder also sees the test point's own embedding.
        observed_loss: Whether the direct head answers with a test loss, from which the observed
            training loss is subtracted, instead of with the gap itself. The posterior head always
            does.
        pool_first: Whether test points are averaged before decoding (direct head only).
        scale_by_width: Whether attention divides by the root of the whole width.
        channels: Filters of each layer of the image encoder.
        image_layers: Layers of the image encoder, or stages of two blocks each.
        image_encoder: `"conv"` for the network of prototypical networks, `"resnet"` for a residual
            one, as in the paper when learners are residual networks.
        self_layers: Layers of self-attention over the training points, n_self.
        bilinear: Whether targets act on V through the interaction layer of Eq. (9).
        bias: Whether that layer has its 1.
        loss_conditioning: Whether it sees the learner's loss at each training point (direct head
            only).
        symmetric: Whether classes are treated alike, so that there can be any number of them.
        metric: Whether attention goes by distance, in one space of queries and keys.
        rounds: How often the training points' keys move to the unlabelled points that choose them.
        vote: Whether the attention on each label is the belief that the decoder corrects (posterior
            head only).
        clip: How many standard deviations a feature may be off its mean, to NC; any number if 0. A
            feature that hardly ever changes would otherwise tell points apart by itself.
    """

    x_mean: Tensor  # (D,), or (channels, 1, 1)
    x_scale: Tensor  # as x_mean
    y_mean: Tensor  # (C,)
    y_scale: Tensor  # (C,)

    def __init__(
        self,
        inputs: int | Sequence[int],
        outputs: int,
        *,
        head: Literal["posterior", "direct"] = "posterior",
        loss: str = "squared_error",
        width: int = 128,
        heads: int = 4,
        encoder_layers: int = 3,
        decoder_layers: int = 3,
        query_skip: bool = True,
        observed_loss: bool = True,
        pool_first: bool = False,
        scale_by_width: bool = False,
        channels: int = 64,
        image_layers: int = 4,
        image_encoder: Literal["conv", "resnet"] = "conv",
        self_layers: int = 0,
        bilinear: bool = False,
        bias: bool = True,
        loss_conditioning: bool = False,
        symmetric: bool = False,
        metric: bool = False,
        rounds: int = 0,
        vote: bool = False,
        clip: float = 0.0,
    ) -> None:
        super().__init__()
        shape = (inputs,) if isinstance(inputs, int) else tuple(inputs)
        self.architecture: dict[str, Any] = {
            k: v for k, v in locals().items() if k not in ("self", "__class__", "shape")
        }
        self.architecture["inputs"] = inputs if isinstance(inputs, int) else list(inputs)
        least_one = ("outputs", "width", "heads", "encoder_layers", "decoder_layers", "channels")
        for name, least in {**dict.fromkeys(least_one, 1), "self_layers": 0, "rounds": 0}.items():
            if self.architecture[name] < least:
                raise ValueError(f"{name} must be at least {least}, got {self.architecture[name]}")
        if len(shape) not in (1, 3) or min(shape) < 1 or image_layers < 1:
            raise ValueError(
                "inputs must be a number of features or (channels, height, width) with at least "
                f"one image layer, got {inputs} with {image_layers}"
            )
        if loss not in LOSSES:
            raise ValueError(f"loss must be one of {', '.join(LOSSES)}, got {loss}")
        if head not in ("posterior", "direct"):
            raise ValueError(f"head must be posterior or direct, got {head}")
        self.loss = LOSSES[loss]
        self.labels = loss == cross_entropy.name
        posterior = head == "posterior"
        if posterior and pool_first:
            raise ValueError(
                "pool_first must be off for the posterior head, which answers per point"
            )
        if symmetric and not self.labels:
            raise ValueError("symmetric must be off for real targets, which have no classes")
        if vote and not (posterior and self.labels):
            raise ValueError("vote must be off but for the posterior head on labels")
        if loss_conditioning and (posterior or not self.labels):
            raise ValueError("loss_conditioning must be off but for the direct head on labels")
        self.outputs, self.symmetric, self.loss_conditioning = outputs, symmetric, loss_conditioning
        self.image_encoder = (
            make_image_encoder(image_encoder, shape, channels=channels, layers=image_layers)
            if len(shape) == 3
            else None
        )
        features = shape[0] if self.image_encoder is None else self.image_encoder.features
        embedded = features
        targets = 1 if symmetric else outputs
        answers = 1
        if posterior:
            answers = targets if self.labels else 2 * targets
        else:
            features += (2 if self.labels else 1) * targets
        network = SetNetwork(
            features,
            targets + loss_conditioning,
            answers,
            width=width,
            heads=heads,
            encoder_layers=encoder_layers,
            decoder_layers=decoder_layers,
            query_skip=query_skip,
            pool_first=pool_first,
            scale_by_width=scale_by_width,
            self_layers=self_layers,
            bilinear=bilinear,
            bias=bias,
            metric=metric,
            # What h says must not decide which images are alike.
            metric_features=0 if posterior else embedded,
            rounds=rounds,
            vote=vote,
        )
        self.head: PosteriorHead | DirectHead = (
            PosteriorHead(network, labels=self.labels, symmetric=symmetric)
            if posterior
            else DirectHead(network, symmetric=symmetric)
        )
        if not clip >= 0:
            raise ValueError(f"clip must not be negative, got {clip}")
        self.observed_loss, self.clip = observed_loss, clip
        self.provenance: dict[str, Any] = {}  # what made the weights; saved with them
        # How far NC was off on held-out learners, which bounds need; saved with the weights, too.
        self.calibration: Calibration | None = None
        for name, size in (
            ("x", shape if len(shape) == 1 else (shape[0], 1, 1)),
            ("y", (outputs,)),
        ):
            self.register_buffer(f"{name}_mean", torch.zeros(size))
            self.register_buffer(f"{name}_scale", torch.ones(size))

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one input: (D,), or (channels, height, width)."""
        inputs = self.architecture["inputs"]
        return (inputs,) if isinstance(inputs, int) else tuple(inputs)

    @property
    def shown(self) -> int:
        """How many training points it is used to see at once."""
        return int(self.provenance.get("shown", SHOWN))

    @classmethod
    def for_tasks(cls, task: Task, **architecture: Any) -> "NeuralComplexity":
        """Builds an untrained NC whose units fit a sample of tasks.

        Args:
            task: Some tasks; inputs and training targets give dimensions, centres and scales, and
                targets the loss.
            architecture: Any other argument of the class; `outputs`, too, where some classes may
                be missing among the tasks.
        """
        X, Y = task.X_tr, task.Y_tr
        usual = squared_error if Y.is_floating_point() else cross_entropy
        architecture = {"loss": usual.name, **architecture}
        if architecture["loss"] == cross_entropy.name:
            defaults = FOR_LABELS.get(architecture.get("head", "posterior"), {})
            # An untrained NC has seen labels, which say how many classes there are at least.
            classes = int(torch.stack([Y.max(), task.Y_te.max()]).max()) + 1
            architecture = {"outputs": classes, **defaults, **architecture}
        else:
            architecture = {"outputs": Y.shape[-1], **architecture}
        images = X.ndim == 5
        nc = cls(X.shape[2:] if images else X.shape[-1], **architecture)
        flat = X.flatten(0, -4).transpose(0, 1).flatten(1).T if images else X.flatten(0, -2)
        for name, values in (("x", flat), *(() if nc.labels else (("y", Y.flatten(0, -2)),))):
            scale, mean = torch.std_mean(values, dim=0, correction=0)
            own = getattr(nc, f"{name}_mean")
            own.copy_(mean.view_as(own))
            # A constant feature has nothing to scale.
            getattr(nc, f"{name}_scale").copy_(torch.where(scale > 0, scale, 1.0).view_as(own))
        if nc.image_encoder is not None:
            nc.image_encoder.calibrate(nc._x(X.flatten(0, 1)[:CALIBRATION]))
        return nc

    def take_image_encoder(self, other: "NeuralComplexity") -> None:
        """Takes over the image encoder of a trained NC, which is trained no further.

        Where this NC has layers of its own that say which images are alike, and the other one
        learned that in layers of the same size, these are taken over too.

        Args:
            other: The NC to take it from; stays as it is.

        Raises:
            ValueError: If the two see other images or have encoders of other sizes.
        """
        sizes = ("inputs", "channels", "image_layers", "image_encoder")
        own, its = ([nc.architecture[name] for name in sizes] for nc in (self, other))
        if self.image_encoder is None or other.image_encoder is None or own != its:
            raise ValueError(
                f"the image encoders must have the same inputs, channels and layers, got {own} and "
                f"{its}"
            )
        self.image_encoder.load_state_dict(other.image_encoder.state_dict())
        self.image_encoder.requires_grad_(False)
        self.x_mean.copy_(other.x_mean)
        self.x_scale.copy_(other.x_scale)
        self.head.network.take_metric(other.head.network)

    def embed(self, X: Tensor) -> Tensor:
        """Gives each input's embedding, which depends neither on h nor on any other input.

        Args:
            X: Inputs, (..., D) or (..., channels, height, width).

        Returns:
            Embeddings, (..., features): for vectors, the inputs in NC's own units.
        """
        X = self._x(X)
        return X if self.image_encoder is None else self.image_encoder(X)

    def encode(
        self, X_tr: Tensor, Y_tr: Tensor, X_te: Tensor, *, classes: int | None = None
    ) -> Context:
        """Does all of NC's work that does not depend on h.

        Args:
            X_tr: Training inputs, (B, M, D) or (B, M, channels, height, width).
            Y_tr: Training targets, (B, M, C), or labels, (B, M).
            X_te: Test inputs, (B, N, ...).
            classes: How many classes the labels are of; NC's own number if `None`.

        Returns:
            What `points` needs to judge learners on these tasks.
        """
        return self.context(self.embed(X_tr), Y_tr, self.embed(X_te), classes=classes)

    def context(
        self, E_tr: Tensor, Y_tr: Tensor, E_te: Tensor, *, classes: int | None = None
    ) -> Context:
        """Goes on where `embed` stopped: `encode` for inputs whose embeddings are at hand.

        Args:
            E_tr: Embeddings of training inputs, (B, M, features).
            Y_tr: As in `encode`.
            E_te: Embeddings of test inputs, (B, N, features).
            classes: As in `encode`.
        """
        Y = self.targets(Y_tr, classes=classes)
        sets = Sets(E_tr, Y if self.labels else self._y(Y), E_te)
        return Context(Y_tr, self._believe(sets) if isinstance(self.head, PosteriorHead) else sets)

    def targets(self, Y: Tensor, *, classes: int | None = None) -> Tensor:
        """Gives targets as numbers, (B, M, C): labels, (B, M), as ones and zeros.

        Args:
            Y: Targets or labels.
            classes: How many classes labels are of; NC's own number if `None`.
        """
        if not self.labels:
            return Y
        # Not `one_hot`: a graph of it would be for one number of classes.
        names = torch.arange(classes or self.outputs, device=Y.device)
        return (Y.unsqueeze(-1) == names).to(self.x_mean.dtype)

    def points(self, context: Context, H_tr: Tensor, H_te: Tensor) -> Tensor:
        """Predicts per test point its loss minus the learner's training loss.

        Args:
            context: From `encode`, for the same tasks.
            H_tr: Predictions on training inputs, (B, M, C).
            H_te: Predictions on test inputs, (B, N, C).

        Returns:
            One value per test point, (B, N); their mean is the predicted gap.
        """
        losses_tr = self.loss(H_tr, context.Y_tr)  # (B, M)
        if isinstance(context.known, Sets):
            unit = 1.0 if self.labels else self.y_scale.square().mean()  # of a loss
            answer = self._ask(context.known, losses_tr, H_tr, H_te)  # (B, N)
            if not self.observed_loss:
                return answer * unit
            # A loss is never negative: without this, learners run off to where NC promises one.
            losses_te = (_squareplus(answer) if self.labels else softplus(answer)) * unit
        else:
            losses_te = self.loss.expected(H_te, context.known)  # (B, N)
        return losses_te - losses_tr.mean(dim=1, keepdim=True)

    def _ask(self, sets: Sets, losses_tr: Tensor, H_tr: Tensor, H_te: Tensor) -> Tensor:
        """Asks the direct head, (B, N)."""
        assert isinstance(self.head, DirectHead)
        C = sets.Y_tr.shape[-1]
        if H_te.shape[-1] != C:
            raise ValueError(
                f"logits must be of the {C} classes that were encoded, got {H_te.shape[-1]}"
            )
        T_tr = sets.Y_tr.unsqueeze(-1) if self.symmetric else sets.Y_tr  # (B, M, [C,] targets)
        if self.loss_conditioning:
            seen = losses_tr.log1p().view(*losses_tr.shape, *[1] * (T_tr.ndim - 2))
            T_tr = torch.cat([T_tr, seen.expand(*T_tr.shape[:-1], 1)], dim=-1)
        answer: Tensor = self.head(sets, T_tr, self._h(H_tr), self._h(H_te))
        return answer

    def _h(self, H: Tensor) -> Tensor:
        """Gives what the direct head sees of predictions, (B, M, [C,] features)."""
        if not self.labels:
            return self._y(H)
        surprise = -log_softmax(H, dim=-1)
        # Probabilities tell apart what is likely, the logarithm what is unlikely.
        seen = torch.stack([(-surprise).exp(), surprise.log1p()], dim=-1)  # (B, M, C, 2)
        return seen if self.symmetric else seen.flatten(2)

    def belief(
        self, X_tr: Tensor, Y_tr: Tensor, X_te: Tensor, *, classes: int | None = None
    ) -> Belief:
        """Gives the posterior head's own p(y | x, S) at the test points.

        Args:
            X_tr: Training inputs, (B, M, D) or (B, M, channels, height, width).
            Y_tr: Training targets, (B, M, C), or labels, (B, M).
            X_te: Test inputs, (B, N, ...).
            classes: How many classes the labels are of; NC's own number if `None`.

        Raises:
            ValueError: If the head is not the posterior one.
        """
        self.check(classes=classes, X_tr=X_tr, Y_tr=Y_tr, X_te=X_te)
        return self._belief(X_tr, Y_tr, X_te, classes)

    def _belief(self, X_tr: Tensor, Y_tr: Tensor, X_te: Tensor, classes: int | None) -> Belief:
        if not isinstance(self.head, PosteriorHead):
            raise ValueError(
                "a belief needs the posterior head, got the direct head, which has none"
            )
        known = self.encode(X_tr, Y_tr, X_te, classes=classes).known
        assert not isinstance(known, Sets)
        return known

    def predict_points(
        self, X_tr: Tensor, Y_tr: Tensor, H_tr: Tensor, X_te: Tensor, H_te: Tensor
    ) -> Tensor:
        """Predicts for each test point its loss minus the training loss.

        Differentiable in H_tr and H_te.

        Args:
            X_tr: Training inputs, (B, M, D) or (B, M, channels, height, width).
            Y_tr: Training targets, (B, M, C), or labels, whole numbers (B, M).
            H_tr: Predictions on training inputs, (B, M, C); logits in the case of labels.
            X_te: Test inputs, (B, N, ...).
            H_te: Predictions on test inputs, (B, N, C).

        Returns:
            One value per test point, (B, N).

        Raises:
            TypeError: If something is not a floating tensor of NC's own type.
            ValueError: If shapes disagree, a set is empty or a value is not finite.
        """
        self.check(X_tr=X_tr, Y_tr=Y_tr, H_tr=H_tr, X_te=X_te, H_te=H_te)
        context = self.encode(X_tr, Y_tr, X_te, classes=H_te.shape[-1] if self.labels else None)
        return self.points(context, H_tr, H_te)

    def predict(
        self, X_tr: Tensor, Y_tr: Tensor, H_tr: Tensor, X_te: Tensor, H_te: Tensor
    ) -> Tensor:
        """Predicts the generalization gap, NC(h) of section 3.3, as (B,).

        The arguments and errors are those of `predict_points`, whose mean over test points this is.
        """
        return self.predict_points(X_tr, Y_tr, H_tr, X_te, H_te).mean(dim=1)

    def predict_loss(
        self, X_tr: Tensor, Y_tr: Tensor, H_tr: Tensor, X_te: Tensor, H_te: Tensor
    ) -> Tensor:
        """Predicts the test loss, which is the training loss plus the predicted gap, as (B,).

        The arguments and errors are those of `predict_points`.
        """
        gap = self.predict(X_tr, Y_tr, H_tr, X_te, H_te)
        return gap + self.loss(H_tr, Y_tr).mean(dim=1)

    def predict_accuracy(
        self, X_tr: Tensor, Y_tr: Tensor, H_tr: Tensor, X_te: Tensor, H_te: Tensor
    ) -> Tensor:
        """Predicts the share of test points whose label is the class of the largest logit, as (B,).

        The arguments and errors are those of `predict_points`.

        Raises:
            ValueError: Also if targets are not labels, or the head is not the posterior one.
        """
        self.check(X_tr=X_tr, Y_tr=Y_tr, H_tr=H_tr, X_te=X_te, H_te=H_te)
        if not self.labels:
            raise ValueError("an accuracy needs labels, got an NC for real targets")
        belief = self._belief(X_tr, Y_tr, X_te, H_te.shape[-1])
        return 1 - zero_one.expected(H_te, belief).mean(dim=1)

    def calibrate(self, held_out: Sequence[tuple[Snapshot, Tensor]]) -> None:
        """Finds out how far NC is off on learners it has not seen, in place; replaces what was.

        What is found is kept in `calibration`, from which `bounds.bound` bounds the gap of a new
        learner. It must be like these: the same kind of tasks, learners and set sizes.

        Args:
            held_out: Learners, each on a held-out task of its own, so that they are independent,
                and their test targets, (B, N, C), or labels, (B, N); those with sets of one size
                together. Learners that diverged are left out: a bound is not asked for about them.

        Raises:
            ValueError: If all learners diverged, or NC cannot judge them.
        """
        from neural_complexity.model.judgement import measure_all  # which asks NC

        self.calibration = measure_all(self, held_out)

    def assess(
        self,
        model: Any,
        X_tr: object,
        y_tr: object = None,
        X_te: object = None,
        *,
        classes: Sequence[Any] | None = None,
        confidence: float = 0.95,
        method: Method = "conformal",
    ) -> "Assessment":
        """Predicts how badly a trained model of any kind generalizes, and where.

        The arguments and errors are those of `assessment.asking.assess`.

        Args:
            model: A callable, a module or a fitted scikit-learn estimator.
            X_tr: Training inputs: an array, a tensor, nested lists or a data frame; or a `Dataset`
                or `DataLoader` of pairs (x, y), and then y_tr is `None`.
            y_tr: Training targets.
            X_te: Test inputs, which need no labels.
            classes: The class of each column of the model's predictions.
            confidence: How often the bound should hold.
            method: Of the bound.
        """
        from neural_complexity.assessment.assess import assess

        return assess(
            self, model, X_tr, y_tr, X_te, classes=classes, confidence=confidence, method=method
        )

    def save(self, path: str | Path) -> None:
        """Writes weights, architecture, units, calibration and provenance to one file, at once."""
        header = {
            "format": FORMAT,
            "version": str(VERSION),
            "architecture": json.dumps(self.architecture),
            "provenance": json.dumps(self.provenance),
        }
        tensors = dict(self.state_dict())
        if self.calibration is not None:
            header["calibration"] = self.calibration.text()
            tensors |= {CALIBRATED + k: v for k, v in self.calibration.tensors().items()}
        write_tensors(Path(path), tensors, header)

    @classmethod
    def load(cls, path: str | Path) -> "NeuralComplexity":
        """Reads an NC from a safetensors file; runs no code from it.

        Raises:
            FileNotFoundError: If there is no such file.
            ValueError: If the file is damaged, of another kind, or newer than this library.
        """
        tensors, header = read_tensors(Path(path))
        if header.get("format") != FORMAT:
            raise ValueError(f"{path} must be a saved NC, got a safetensors file of another kind")
        if header.get("version") not in [str(version) for version in READABLE]:
            raise ValueError(
                f"{path} must have format version {' or '.join(map(str, READABLE))}, got "
                f"{header.get('version')}; use a release of this library that knows it"
            )
        try:
            return cls._from(tensors, header)
        except (
            AttributeError,  # as for the length of what should be a list
            ArithmeticError,
            LookupError,
            TypeError,
            RuntimeError,
            ValueError,  # such as what is not JSON
        ) as error:
            reason = (str(error).splitlines() or [type(error).__name__])[0]
            raise ValueError(
                f"{path} must hold a complete NC, got a damaged one ({reason})"
            ) from None

    @classmethod
    def _from(cls, tensors: dict[str, Tensor], header: dict[str, str]) -> "NeuralComplexity":
        nc = cls(**json.loads(header["architecture"]))
        own = {name: t for name, t in tensors.items() if not name.startswith(CALIBRATED)}
        nc.load_state_dict(own)
        provenance = json.loads(header["provenance"])
        if not isinstance(provenance, dict):
            raise TypeError(f"the provenance is of type {type(provenance).__name__}")
        nc.provenance = provenance
        if "calibration" in header or len(own) < len(tensors):
            known = {
                name.removeprefix(CALIBRATED): t for name, t in tensors.items() if name not in own
            }
            nc.calibration = Calibration.read(known, header["calibration"])
        return nc

    @classmethod
    def pretrained(cls, name: str) -> "NeuralComplexity":
        """Gives an NC that ships with the package.

        Args:
            name: Which one; `pretrained_names` tells what there is. The NCs on sinusoids are made
                by the `sinusoid` experiment at preset `cpu`, those on characters by the `omniglot`
                experiment, and see images made by `tasks.omniglot.preprocess`.

        Raises:
            ValueError: If none of that name ships.
        """
        names = cls.pretrained_names()
        if name not in names:
            raise ValueError(f"name must be one of {', '.join(names)}, got {name}")
        folder = resources.files("neural_complexity") / "pretrained"
        with resources.as_file(folder / f"{name}.safetensors") as path:
            return cls.load(path)

    @staticmethod
    def pretrained_names() -> dict[str, str]:
        """Tells which NCs ship with the package, each with a line on what it judges.

        Example:
            >>> NeuralComplexity.pretrained_names()["sinusoid"]
            'regression of sinusoids from about ten points; posterior head'
        """
        folder = resources.files("neural_complexity") / "pretrained"
        files = [file.name for file in folder.iterdir()]
        names = [name.removesuffix(".safetensors") for name in files if ".safetensors" in name]
        return {name: SHIPPED[name] for name in sorted(names)}

    def to_onnx(self, path: str | Path) -> None:
        """Writes NC as an ONNX file, for sets of any size; see `neural_complexity.model.export.to_onnx`.

        Args:
            path: The file.

        Raises:
            ImportError: If the extra `onnx` is not installed.
            TypeError: If NC is not float32.
            ValueError: If PyTorch cannot export this NC.
        """
        # The layer above: this method is a door for users.
        from neural_complexity.model.export import to_onnx

        to_onnx(self, path)

    def _believe(self, sets: Sets) -> Belief:
        own: Belief = self.head(sets)
        if not isinstance(own, Gaussian):
            return own
        mean = own.mean * self.y_scale + self.y_mean
        return Gaussian(mean, own.variance * self.y_scale.square())

    def _x(self, X: Tensor) -> Tensor:
        values = (X - self.x_mean) / self.x_scale
        return values.clamp(-self.clip, self.clip) if self.clip else values

    def _y(self, Y: Tensor) -> Tensor:
        return (Y - self.y_mean) / self.y_scale

    def check(self, *, classes: int | None = None, **tensors: Tensor) -> None:
        """Refuses what NC cannot judge, before it gives a number that looks like an answer.

        Args:
            classes: How many classes labels are of; those of the predictions, or NC's own number if
                there are none, if `None`.
            tensors: By name, as in `predict_points`.

        Raises:
            TypeError: If something is not a tensor of NC's own type, or labels are not int64.
            ValueError: If shapes disagree, a set is empty, a value is not finite, or a label is
                none of the classes.
        """
        for name, tensor in tensors.items():
            # First: real numbers would be asked for features, which labels do not have.
            if self.labels and name.startswith("Y") and isinstance(tensor, Tensor):
                _check_type_of_labels(name, tensor)
        check_sets(**tensors)
        if self.labels and classes is None:
            given = (t.shape[-1] for name, t in tensors.items() if name.startswith("H"))
            classes = next(given, self.outputs)
        if self.labels and classes != self.outputs and not self.symmetric:
            raise ValueError(
                f"labels must be of the {self.outputs} classes that NC was made for, got {classes}"
            )
        for name, tensor in tensors.items():
            if name.startswith("Y") and self.labels:
                _check_labels(name, tensor, classes or self.outputs)
            else:
                self._check_values(name, tensor, classes or self.outputs)

    def _check_values(self, name: str, tensor: Tensor, outputs: int) -> None:
        shape = self.shape if name[0] == "X" else (outputs,)
        if tuple(tensor.shape[2:]) != shape:
            wanted = ", ".join(map(str, shape))
            raise ValueError(
                f"{name} must be (tasks, points, {wanted}), got shape {tuple(tensor.shape)}"
            )
        if tensor.dtype != self.x_mean.dtype:
            raise TypeError(f"{name} must be {self.x_mean.dtype} like NC, got {tensor.dtype}")
        if not tensor.isfinite().all():
            raise ValueError(f"{name} must be finite, got NaN or infinity")


def _check_type_of_labels(name: str, labels: Tensor) -> None:
    if labels.dtype != torch.int64:
        raise TypeError(f"{name} must be labels of type torch.int64, got {labels.dtype}")


def _check_labels(name: str, labels: Tensor, classes: int) -> None:
    if labels.ndim != 2:
        raise ValueError(f"{name} must be (tasks, points), got shape {tuple(labels.shape)}")
    low, high = torch.aminmax(labels)
    if low < 0 or high >= classes:
        raise ValueError(f"{name} must be from 0 to {classes - 1}, got {int(low)} to {int(high)}")


def _squareplus(x: Tensor) -> Tensor:
    """Is positive like softplus, but has a gradient left where it is close to zero.

    Most labels are right and cost next to nothing; with softplus the head would fall asleep there.
    """
    return 0.5 * (x + (x.square() + 4).sqrt())
