"""What a monitor found, chunk by chunk: its frame, its figure and its page."""

import json
from dataclasses import dataclass, replace

import matplotlib as mpl
import pandas as pd
from matplotlib.figure import Figure as Canvas

from neural_complexity.assessment.metrics import ENDS
from neural_complexity.assessment.page import CLIPPED, slices_of
from neural_complexity.assessment.report import COLORS, STYLE, Figure, Table, plain, render, to_png
from neural_complexity.assessment.result import Assessment

__all__ = ["Check", "History"]

USUAL, ALARM, LIKE = COLORS["posterior"], COLORS["direct"], COLORS["oracle"]
LEVEL = 0.05  # of the test for moved data
NAMED = 12  # chunks that the figure names, at most
ASSUMED = (
    "Targets depend on features as those of the training rows do. If that has changed, only new "
    "labels can tell.",
    "An alarm compares what NC expects of a chunk with what it expects of reference points that "
    "the model did not learn from. Rows may move without an alarm, where the model copes.",
)


@dataclass(frozen=True, kw_only=True, eq=False)
class Check:
    """What is expected of a model on one chunk of new rows."""

    name: str
    assessment: Assessment
    expected: float | None
    """The error that is expected on the reference: the share of wrong answers, or the squared
    error; `None` if there is none."""
    p_value: float | None
    """Of an expected error as large as that of the chunk, if it is like the reference."""
    alarm: bool
    """Whether that is so unlikely that something is wrong."""

    @property
    def error(self) -> float:
        """The error that is expected on the chunk."""
        assert self.assessment.errors is not None
        return float(self.assessment.errors.mean())

    def __repr__(self) -> str:
        name, found = next(iter(self.assessment.metrics.items()))
        p = "no reference" if self.p_value is None else f"p = {self.p_value:.2g}"
        alarm = "ALARM, " if self.alarm else ""
        moved = "" if self.assessment.moved is None else f"; {self.assessment.moved}"
        return f"{self.name}: {alarm}{name} {found}, {p}{moved}"


@dataclass(frozen=True, eq=False)
class History:
    """The chunks that a monitor checked, in their order."""

    checks: tuple[Check, ...]
    false_alarms: float  # how often a chunk that is like the reference raises an alarm, at most

    @property
    def alarms(self) -> list[str]:
        """The names of the chunks with an alarm."""
        return [check.name for check in self.checks if check.alarm]

    def to_df(self) -> pd.DataFrame:
        """Returns a row for each chunk: metrics with intervals, alarm, and whether data moved."""
        rows = []
        for check in self.checks:
            found = check.assessment
            row = {"chunk": check.name, "rows": len(found.points), "alarm": check.alarm}
            row |= {"p_value": check.p_value, "error": check.error}
            row |= {"reference_error": check.expected, "loss": found.loss_te}
            for name, one in found.metrics.items():
                row |= {f"{name} {end}": getattr(one, end) for end in ENDS}
            if found.moved is not None:
                row |= {"shift_p_value": found.moved.p_value, "shift_auc": found.moved.auc}
                row |= {"outside": len(found.moved.outside)}
                row |= {"shifted_features": ", ".join(found.moved.features)}
            rows.append(row)
        return pd.DataFrame(rows).set_index("chunk") if rows else pd.DataFrame()

    @mpl.rc_context(STYLE)
    def plot(self) -> Canvas:
        """Draws the first metric with its interval, and how far rows have moved, over chunks."""
        canvas = Canvas(figsize=(9.2, 4.4), layout="constrained")
        top, bottom = canvas.subplots(2, 1, sharex=True, height_ratios=(3, 1))
        if not self.checks:
            return canvas
        metric = next(iter(self.checks[0].assessment.metrics))
        each = [check.assessment.metrics.get(metric) for check in self.checks]
        for i, (check, one) in enumerate(zip(self.checks, each, strict=True)):
            if one is None:  # it has no value there
                continue
            color = ALARM if check.alarm else USUAL
            top.plot([i, i], [one.low, one.high], lw=5, alpha=0.3, color=color)
            top.plot([i], [one.value], "D" if check.alarm else "o", ms=6, color=color)
            moved = check.assessment.moved
            if moved is not None:
                face = color if moved.p_value < LEVEL else "none"
                bottom.plot([i], [moved.auc], "o", ms=6, mec=color, mfc=face)
        known = [check.expected for check in self.checks if check.expected is not None]
        if metric == "accuracy" and known:
            top.axhline(1 - known[-1], color=LIKE, lw=0.9, ls="--")
        # Handles of their own, as a kind of chunk may not occur.
        top.plot([], [], "o", color=USUAL, label="expected, with its interval")
        top.plot([], [], "D", color=ALARM, label="alarm")
        if metric == "accuracy" and known:
            top.plot([], [], "--", color=LIKE, label="expected on the reference")
        top.legend(loc="lower left", ncols=3, bbox_to_anchor=(0, 1))
        top.set(ylabel=metric.replace("_", " "), xmargin=0.03)
        bottom.axhline(0.5, color=LIKE, lw=0.9, ls="--")
        bottom.set(ylabel="told from\ntraining (AUC)", xlabel="chunks; filled: rows have moved")
        bottom.set(ylim=(0.4, 1.04))
        ticks = range(0, len(self.checks), -(-len(self.checks) // NAMED))
        names = [plain(self.checks[i].name) for i in ticks]
        bottom.set_xticks(list(ticks), names, rotation=25, ha="right")
        return canvas

    def to_html(self) -> str:
        """Returns a page, which needs no other file and no network."""
        n, alarms = len(self.checks), self.alarms
        said = f"Alarms in {len(alarms)} of {n} chunk{'s' * (n != 1)}"
        if not any(check.p_value is not None for check in self.checks):
            said = f"{n} chunks, no alarms: there is no reference to compare with"
        often = f"{100 * self.false_alarms:.2g} %"
        rate = f"A chunk that is like the reference raises one in {often} of cases"
        title = "How the model is expected to do"
        caption = "Above: each chunk, with the interval. Below: how well its rows are told from "
        figure = Figure(to_png(self.plot()), title, f"{caption}training rows; 0.5: not at all.")
        return render(
            f"{said}{': ' if alarms else ''}{', '.join(alarms)}",
            f"{rate} at most. All are compared with one reference.",
            [self._table(), *self._why()],
            [figure],
            json.loads(self.to_df().reset_index().to_json(orient="records")),
            assumed=ASSUMED,
            details_title="All numbers",
        )

    def _table(self) -> Table:
        metrics = list(self.checks[0].assessment.metrics) if self.checks else []
        rows = []
        for check in self.checks:
            found, p = check.assessment, check.p_value
            told = [found.metrics[n].short() if n in found.metrics else "" for n in metrics]
            moved = "" if found.moved is None else f"p = {found.moved.p_value:.2g}"
            alarm = "ALARM" if check.alarm else ""
            tested = ("" if p is None else f"{p:.2g}", moved)
            rows.append((check.name, str(len(found.points)), alarm, *tested, *told))
        header = ("chunk", "rows", "alarm", "p-value", "have rows moved?", *metrics)
        note = "p-value: of an expected error as large as this, if a chunk is like the reference."
        for one in self.checks[0].assessment.metrics.values() if self.checks else ():
            note = f"Intervals are at {100 * one.confidence:g} %. {note}"
            break
        if "log_loss" in metrics:
            note = f"{note} {CLIPPED}."
        return Table("Chunks", header, tuple(rows), note)

    def _why(self) -> list[Table]:
        """Returns where the model is expected to fail in the last chunk that raised an alarm."""
        last = next((check for check in reversed(self.checks) if check.alarm), None)
        if last is None or not last.assessment.slices:
            return []
        found = slices_of(last.assessment, f"Where it will fail in {last.name}")
        moved = last.assessment.moved
        return [found if moved is None else replace(found, note=f"{found.note} The {moved}.")]

    def __repr__(self) -> str:
        return "\n".join(map(repr, self.checks)) or "no chunks"
