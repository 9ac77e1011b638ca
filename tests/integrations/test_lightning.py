import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import pytest
import torch
from lightning.pytorch.plugins.precision import MixedPrecision
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

from neural_complexity.integrations.lightning import NCCallback
from neural_complexity.model.network import NeuralComplexity
from neural_complexity.regularizers.loop import NCRegularizer

pytestmark = pytest.mark.filterwarnings("ignore")  # Lightning's own, about workers and loggers


class Classifier(pl.LightningModule):
    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.network = nn.Sequential(
            nn.Linear(3, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Dropout(dropout), nn.Linear(6, 4)
        )
        self.logged: list[float] = []

    def forward(self, x: Tensor) -> Tensor:
        H: Tensor = self.network(x)
        return H

    def training_step(self, batch: tuple[Tensor, Tensor], _: int) -> Tensor:
        return cross_entropy(self(batch[0]), batch[1])

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9)

    def log(self, name: str, value: Any, *_: Any, **more: Any) -> None:
        assert name == "nc_penalty"
        self.logged.append(float(value))
        super().log(name, value, **more)


X, U = torch.randn(24, 3, dtype=torch.float64), torch.randn(20, 3, dtype=torch.float64)
y = torch.arange(24) % 4


def small_nc() -> NeuralComplexity:
    torch.manual_seed(1)
    return NeuralComplexity(3, 4, loss="cross_entropy", symmetric=True, width=8, heads=2)


def loader(shuffle: bool) -> DataLoader[Any]:
    return DataLoader(TensorDataset(X, y), batch_size=8, shuffle=shuffle)


def fit(
    *callbacks: Any,
    steps: int = -1,
    epochs: int = 2,
    noisy: bool = False,
    resume: Path | None = None,
    **more: Any,
) -> tuple[Classifier, Any]:
    model = Classifier(dropout=0.2 if noisy else 0.0)
    torch.manual_seed(7)
    options: dict[str, Any] = {"barebones": True} if "logger" not in more else {}
    trainer = pl.Trainer(
        accelerator="cpu",
        max_epochs=epochs,
        max_steps=steps,
        callbacks=list(callbacks),
        **options,
        **more,
    )
    trainer.fit(model, loader(shuffle=noisy), ckpt_path=resume)
    return model, trainer


def equal(a: nn.Module, b: nn.Module) -> bool:
    pairs = zip(a.state_dict().values(), b.state_dict().values(), strict=True)
    return all(torch.equal(one, other) for one, other in pairs)


def test_weight_zero_is_bit_for_bit_no_callback() -> None:
    plain, _ = fit(noisy=True)
    silent, _ = fit(NCCallback(small_nc(), U, weight=0.0), noisy=True)
    loud, _ = fit(NCCallback(small_nc(), U), noisy=True)
    assert equal(plain, silent)
    assert not equal(plain, loud)


@pytest.mark.parametrize("parts", [1, 2])
def test_it_trains_as_a_loop_with_the_penalty_in_the_loss(parts: int) -> None:
    unlabelled = DataLoader(TensorDataset(U), batch_size=5)
    options: dict[str, Any] = {"safeguard": False, "floor": None}
    trained, _ = fit(
        NCCallback(small_nc(), unlabelled, **options), steps=3, accumulate_grad_batches=parts
    )
    model, penalty = Classifier(), NCRegularizer(small_nc(), safeguard=False, floor=None)
    torch.manual_seed(7)
    optimizer = model.configure_optimizers()
    for i in range(3 * parts):
        u = U[i % 4 * 5 : i % 4 * 5 + 5]
        x_now, y_now = X[i % 3 * 8 : i % 3 * 8 + 8], y[i % 3 * 8 : i % 3 * 8 + 8]
        loss = cross_entropy(model(x_now), y_now) + penalty(model, x_now, y_now, u)
        (loss / parts).backward()
        # Lightning steps at the end of an epoch of three minibatches, too.
        if i % 3 == 2 or i % 3 % parts == parts - 1:
            optimizer.step()
            optimizer.zero_grad()
        if penalty.calls == 3 * parts - (parts - 1):
            break
    for a, b in zip(model.state_dict().values(), trained.state_dict().values(), strict=True):
        torch.testing.assert_close(a, b)


def distance(a: nn.Module, b: nn.Module) -> float:
    pairs = zip(a.parameters(), b.parameters(), strict=True)
    return max(float((one - other).detach().abs().max()) for one, other in pairs)


def test_it_works_with_mixed_precision_and_scaled_losses(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.set_default_dtype(torch.float32)
    monkeypatch.setitem(globals(), "X", X.float())
    unlabelled = U.float()

    def callback() -> NCCallback:
        return NCCallback(small_nc(), unlabelled, weight=5.0, floor=None, safeguard=False)

    exact, _ = fit(callback(), steps=2)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
    for plugin in (
        MixedPrecision("bf16-mixed", "cpu"),
        MixedPrecision("16-mixed", "cpu", scaler=scaler),
    ):
        mixed, _ = fit(callback(), steps=2, plugins=[plugin])
        without, _ = fit(steps=2, plugins=[plugin])
        assert distance(mixed, exact) < distance(without, exact) / 5


def test_training_resumes_from_a_checkpoint_and_logs_the_penalty(tmp_path: Path) -> None:
    def callback() -> NCCallback:
        return NCCallback(small_nc(), U, batch=6, weight=lambda calls: 1 + calls / 10)

    quiet: dict[str, Any] = {
        "logger": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "enable_checkpointing": False,
    }
    # Whole epochs: Lightning itself does not resume in the middle of one.
    whole, _ = fit(callback(), epochs=2, **quiet)
    part, trainer = fit(callback(), epochs=1, **quiet)
    trainer.save_checkpoint(tmp_path / "part.ckpt")
    assert trainer.callback_metrics["nc_penalty"] == pytest.approx(part.logged[-1])
    resumed = callback()
    rest, _ = fit(resumed, epochs=2, resume=tmp_path / "part.ckpt", **quiet)
    assert resumed.penalty.calls == 6
    assert [*part.logged, *rest.logged] == pytest.approx(whole.logged)
    for a, b in zip(whole.state_dict().values(), rest.state_dict().values(), strict=True):
        torch.testing.assert_close(a, b)


def test_what_does_not_fit_is_refused() -> None:
    nc = small_nc()
    unlabelled: Any = [1, 2]
    with pytest.raises(TypeError, match="unlabelled must be a tensor or a DataLoader, got list"):
        NCCallback(nc, unlabelled)
    with pytest.raises(ValueError, match="unlabelled must be points, got a tensor of shape"):
        NCCallback(nc, torch.zeros(0, 3))
    with pytest.raises(ValueError, match="batch must be at least 1, got 0"):
        NCCallback(nc, U, batch=0)
    with pytest.raises(TypeError, match="unlabelled must give tensors, got NoneType"):
        fit(NCCallback(nc, DataLoader(TensorDataset(U[:0]))))
    callback, model = NCCallback(nc, U), Classifier()
    trainer: Any = None
    model.automatic_optimization = False
    with pytest.raises(ValueError, match="automatic_optimization must be on for NCCallback"):
        callback.on_train_batch_start(trainer, model, None, 0)
    with pytest.raises(TypeError, match=r"minibatches must be pairs of tensors \(x, y\)"):
        callback.on_before_backward(trainer, model, torch.zeros(()))


def test_without_lightning_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    name = "neural_complexity.integrations.lightning"
    monkeypatch.setitem(sys.modules, "lightning.pytorch", None)
    monkeypatch.delitem(sys.modules, name)
    with pytest.raises(ImportError, match=r"pip install 'neural-complexity\[lightning\]'"):
        import_module(name)
