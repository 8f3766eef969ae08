"""Results as tables for a terminal."""

from __future__ import annotations

from collections.abc import Mapping

from rich.table import Table
from rich.text import Text

from astrarium.run.tables import number, plain_table
from astrarium.serving.report.summary import ModelSummary, Summary

GOAL = 0.99  # the share of requests in time that a latency objective asks for
_MOST_MODELS = 40


def overview_table(summaries: Mapping[str, Summary]) -> Table:
    """Return one row for each run: what came in time, what did not, on what hardware.

    Losses that no run had get no column, so that the table fits a narrow terminal more often.
    """
    rows = [_overview_cells(summary) for summary in summaries.values()]
    names = [name for name in rows[0] if not all(row[name] in _says_nothing(name) for row in rows)]
    table = plain_table("policy", *names)
    for label, row in zip(summaries, rows, strict=True):
        table.add_row(label, *(row[name] for name in names))
    return table


_LOSSES = ("late", "dropped", "failed", "wasted")


def _says_nothing(name: str) -> tuple[str, ...]:
    """Return the cells of a column that say nothing: no loss is one, no padding is good to know."""
    return ("", "0", "0.0%") if name in _LOSSES else ("",)


def _overview_cells(s: Summary) -> dict[str, str | Text]:
    return {
        "offered/s": f"{s.offered_rate:,.0f}",
        "in time/s": f"{s.goodput_rate:,.0f}",
        "attained": goal(s.attainment),
        "worst model": goal(s.worst.attainment) if s.worst and len(s.models) > 1 else "",
        "mean batch": _mean_batch(s),
        "padding": _padding(s.padding) if _has_lengths(s) else "",
        "late": f"{s.outcomes.late:,}",
        "dropped": f"{s.outcomes.dropped:,}",
        "failed": f"{s.outcomes.failed:,}",
        "GPUs busy": f"{s.gpus.busy_fraction:.1%}",
        "used": f"{s.gpus.used}/{s.gpus.count}",
        "wasted": f"{s.gpus.wasted_fraction:.1%}",
    }


def model_table(summary: Summary) -> Table:
    """Return a row for each model, worst first; only the worst if there are very many."""
    of_lengths = _LENGTHS if _has_lengths(summary) else ()
    table = plain_table("model", "SLO ms", "offered/s", "attained", "p50 ms", "p99 ms", "mean batch",
                   "late", "dropped", *of_lengths)  # fmt: skip
    models = sorted(summary.models.items(), key=_worst_first)
    for name, model in models[:_MOST_MODELS]:
        table.add_row(name, *_model_cells(model), *(_length_cells(model) if of_lengths else ()))
    if len(models) > _MOST_MODELS:
        table.caption = f"the worst {_MOST_MODELS} of {len(models)} models"
    return table


def _model_cells(model: ModelSummary) -> tuple[str | Text, ...]:
    return (
        f"{model.slo_ms:g}",
        f"{model.offered_rate:,.0f}",
        goal(model.attainment),
        *(number(value) for value in (model.p50_ms, model.p99_ms, model.mean_batch)),
        f"{model.outcomes.late:,}",
        f"{model.outcomes.dropped:,}",
    )


_LENGTHS = ("mean length", "padding")


def _length_cells(model: ModelSummary) -> tuple[str, str]:
    return number(model.mean_length), _padding(model.padding)


def _has_lengths(summary: Summary) -> bool:
    return any(model.mean_length for model in summary.models.values())


def _padding(share: float | None) -> str:
    """Return a cell that says what is padding; nothing may have run."""
    return "-" if share is None else f"{share:.1%}"


def _worst_first(named: tuple[str, ModelSummary]) -> tuple[float, str]:
    name, model = named
    return (2.0 if model.attainment is None else model.attainment, name)


def _mean_batch(summary: Summary) -> str:
    batches = sum(model.batches for model in summary.models.values())
    size = sum((model.mean_batch or 0.0) * model.batches for model in summary.models.values())
    return number(size / batches if batches else None)


def goal(attainment: float | None) -> Text:
    if attainment is None:
        return Text("-")
    return Text(f"{attainment:.2%}", style="green" if attainment >= GOAL else "red")
