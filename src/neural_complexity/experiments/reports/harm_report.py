"""Tables and figures of whether NC does harm."""

from pathlib import Path

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure as Canvas
from torch import Tensor

from neural_complexity.assessment.drawing import COLORS, STYLE, save
from neural_complexity.assessment.page import Figure
from neural_complexity.assessment.tables import Table, find, show
from neural_complexity.experiments.base.networks import HEADS
from neural_complexity.experiments.base.outcome import Outcome
from neural_complexity.experiments.base.rows import Row
from neural_complexity.experiments.harm import JUDGED, MODES, SOURCES

__all__ = ["LEAD", "TITLE", "figures", "tables"]

TITLE = "Do no harm"
LEAD = (
    "NC trained on one family of tasks regularizes learners (transductive, weight 1) on its own "
    "and on other families: as in the paper; with the paper's floor of -0.1 for its estimate; and "
    "with our safeguard, which multiplies the weight of each task by the square of how well NC's "
    "gradient does on the task's own training points, held out in turn. The safeguard was chosen "
    "while looking at these families with other seeds (polynomials only once, at the end). "
    "Real tables: scikit-learn's diabetes, wine, breast cancer and iris data, one random column "
    "predicted from another, NC trained and judged on different rows of the same four tables, so "
    "their intervals say nothing about other tables. NC of sinusoids was trained longer than the "
    "others, and expects inputs from -5 to 5, where real tables have a standard deviation of 1: "
    "part of the harm is that of other units."
)
SAFE = MODES[-1]


def tables(rows: list[Row]) -> list[Table]:
    """Makes the table of tasks helped, unchanged and hurt, and that of test losses."""
    return [_summary(rows), _changes(rows), _shares(rows)]


def _cells() -> list[tuple[str, str, str]]:
    """Gives all of head, family that NC was trained on, family that it is judged on."""
    return [(head, source, name) for head in HEADS for source in SOURCES for name in JUDGED]


def _summary(rows: list[Row]) -> Table:
    """Counts the pairs of families in which NC hurts on average."""
    lines = []
    for head in HEADS:
        for own in (True, False):
            cells = [c for c in _cells() if c[0] == head and (c[1] == c[2]) == own]
            for mode in MODES:
                found = [find(rows, f"NC {h} of {s}, {mode}", f, "change") for h, s, f in cells]
                # Without a mean, learners were driven to infinity.
                changes = [(r.value, r.ci95 or 0.0) if r else (1.0, 0.0) for r in found]
                better = sum(change < -ci for change, ci in changes)
                worse = sum(change > ci for change, ci in changes)
                name = f"NC {head}, {'its own' if own else 'another'} family, {mode}"
                same = len(changes) - better - worse
                lines.append((name, str(better), str(same), str(worse)))
    return Table(
        "On average over tasks, in how many pairs of families does NC help or hurt?",
        ("NC, judged on", "helps", "no difference", "hurts"),
        tuple(lines),
        "Helps, hurts: the mean change of the test loss is beyond its 95 % interval over tasks.",
    )


def _changes(rows: list[Row]) -> Table:
    lines = []
    for head, source, family in _cells():
        name = f"NC {head} of {source}"
        none, best = (find(rows, method, family, "test loss") for method in ("none", "oracle"))
        cells = [_change(rows, f"{name}, {mode}", family) for mode in MODES]
        cells.append(show(find(rows, f"{name}, {SAFE}", family, "change by the safeguard"), 3))
        trusted = show(find(rows, f"{name}, {SAFE}", family, "trust"))
        r2 = show(find(rows, name, family, "R2"))
        lines.append((f"{name} on {family}", show(none), show(best), *cells, trusted, r2))
    return Table(
        "Change of the test loss by NC",
        ("NC", "none", "oracle", *MODES, "by the safeguard", "mean trust", "R2 of gaps"),
        tuple(lines),
        "Value ± 95 % interval over tasks; below 0 NC helps. None and oracle are test losses. By "
        "the safeguard: test loss with it minus test loss as in the paper. Behind †: so many "
        "learners' losses ended ten times above where they began. "
        "Trust: its square multiplies the weight. R2: of predicted against true gaps of "
        "plain learners.",
    )


def _change(rows: list[Row], method: str, family: str) -> str:
    change, diverged = (find(rows, method, family, m) for m in ("change", "diverged tasks"))
    lost = f"†{diverged.value:.0f}" if diverged and diverged.value else ""
    return " ".join(part for part in (show(change, 3), lost) if part)


def _shares(rows: list[Row]) -> Table:
    lines = []
    for head, source, family in _cells():
        cells = []
        for mode in MODES:
            found = [
                find(rows, f"NC {head} of {source}, {mode}", family, m)
                for m in ("helped", "unchanged", "hurt")
            ]
            cells += [f"{100 * row.value:.0f} %" if row else "" for row in found]
        lines.append((f"NC {head} of {source} on {family}", *cells))
    names = [f"{m}, {mode}" for mode in MODES for m in ("helped", "unchanged", "hurt")]
    return Table(
        "Share of tasks helped, unchanged and hurt",
        ("NC", *names),
        tuple(lines),
        "Unchanged: the test loss moved by at most 1 % of what it is without NC.",
    )


def figures(outcome: Outcome, folder: Path) -> list[Figure]:
    """Draws the changes, and how trust foretells them."""
    with mpl.rc_context(STYLE):
        return [
            Figure(
                save(_overview(outcome.rows), folder, "change"),
                "Test loss with NC over test loss without",
                "Rows: what NC was trained on. Columns: what it is judged on. Blue, below 1: NC "
                "helps; red, above 1: it hurts.",
            ),
            Figure(
                save(_foretold(outcome.tensors), folder, "trust"),
                "What NC does without a safeguard, by how far it would be trusted",
                "One dot per task. Above the line the task is hurt; the safeguard leaves tasks at "
                "the left alone. Changes beyond 3 are drawn at 3.",
            ),
        ]


def _overview(rows: list[Row]) -> Canvas:
    canvas = Canvas(figsize=(11.5, 6.0), layout="constrained")
    axes = canvas.subplots(len(HEADS), len(MODES))
    for i, head in enumerate(HEADS):
        for j, mode in enumerate(MODES):
            ratios = np.full((len(SOURCES), len(JUDGED)), np.nan)
            for a, source in enumerate(SOURCES):
                for b, family in enumerate(JUDGED):
                    ours = find(rows, f"NC {head} of {source}, {mode}", family, "test loss")
                    none = find(rows, "none", family, "test loss")
                    if ours and none:
                        ratios[a, b] = ours.value / none.value
            ax = axes[i, j]
            ax.imshow(np.log2(ratios), cmap="RdBu_r", vmin=-1, vmax=1)
            for (a, b), ratio in np.ndenumerate(ratios):
                shade = "white" if abs(np.log2(ratio)) > 0.6 else COLORS["target"]
                text = f"{ratio:.2f}" if np.isfinite(ratio) else "inf"
                ax.text(b, a, text, ha="center", va="center", fontsize=8, color=shade)
            ax.set_xticks(range(len(JUDGED)), [f.replace(" ", "\n") for f in JUDGED], fontsize=7)
            ax.set_yticks(
                range(len(SOURCES)), SOURCES if j == 0 else [""] * len(SOURCES), fontsize=7
            )
            ax.set_title(f"NC {head}, {mode}")
            ax.grid(False)
    return canvas


def _foretold(tensors: dict[str, Tensor]) -> Canvas:
    canvas = Canvas(figsize=(10.5, 4.8), layout="constrained")
    axes = canvas.subplots(len(HEADS), len(SOURCES), sharex=True, sharey=True)
    for i, head in enumerate(HEADS):
        for j, source in enumerate(SOURCES):
            ax = axes[i, j]
            for family in JUDGED:
                key = f"NC {head} of {source}/{family}"
                change = tensors[f"change/{key}"].nan_to_num(3.0, 3.0).clamp(max=3.0)
                ax.plot(tensors[f"trust/{key}"], change, ".", ms=2.5, alpha=0.4, label=family)
            ax.axhline(0, color=COLORS["target"], lw=0.8)
            ax.set_title(f"NC {head} of {source}")
    for ax in axes[-1]:
        ax.set_xlabel("trust")
    for ax in axes[:, 0]:
        ax.set_ylabel("relative change of test loss")
    handles, labels = axes[0, 0].get_legend_handles_labels()
    canvas.legend(
        handles,
        [f"judged on {name}" for name in labels],
        loc="outside lower center",
        ncols=len(JUDGED),
        markerscale=4,
    )
    return canvas
