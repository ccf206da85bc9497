"""The tables of a ladder, in the words that terminals and pages share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tuner.declare.problem import Problem
from tuner.report.rungs import Ladder, Library, Limits, slower_steps
from tuner.results.measurement import Error, headline
from tuner.results.units import answer_speed, config_text, duration, speed


def rung_table(ladder: Ladder, problem: Problem) -> tuple[list[str], list[list[str]]]:
    """Columns and rows of a problem's steps, then of the libraries."""
    rows = _rows(ladder, problem)
    library = ladder.library_of(problem)
    columns = ["step", "time", "speed", "step x", "total x", f"of {library.name if library else 'library'}"]
    columns += ["of limit", "noise", "error: max, mean"]
    optional = [name for name in ("end_to_end", "published") if any(row.get(name) for row in rows)]
    shown = [_cells(row, optional) for row in rows]
    for each in ladder.libraries:
        if each.problem == problem and each.measurement.time_s:
            shown.append([*_library_cells(each, each.measurement.time_s, ladder.limits), *[""] * len(optional)])
    return [*columns, *(name.replace("_", " ") for name in optional)], shown


def _rows(ladder: Ladder, problem: Problem) -> list[dict[str, Any]]:
    return [row for row in ladder.rows() if row["problem"] == problem.to_json()]


def _cells(row: Mapping[str, Any], optional: list[str]) -> list[str]:
    label = f"{row['label']}\n  {config_text(row['config'])}"
    texts = {"end_to_end": _end_to_end(row.get("end_to_end")), "published": published_text(row["published"])}
    rest = [texts[name] for name in optional]
    if row["time_s"] is None:
        return [label, f"{row['outcome']}: {headline(row['reason'])[:80]}", *[""] * 7, *rest]
    return [
        label, duration(row["time_s"]), answer_speed(row),
        *(f"{row[key]:.2f}" if row[key] else "" for key in ("step_speedup", "total_speedup")),
        *(f"{row[key]:.1%}" if row[key] else "" for key in ("of_library", "of_limit")),
        f"{row['noise']:.1%}", _errors(row["error"]), *rest,
    ]  # fmt: skip


def _library_cells(library: Library, time_s: float, limits: Limits) -> list[str]:
    work, measurement = library.problem.work, library.measurement
    limit = limits.least_s(library.problem) / time_s
    told = speed(work.flops, work.bytes, time_s)
    cells = [library.name, duration(time_s), told, "", "", "", f"{limit:.1%}" if limit else ""]
    return [*cells, f"{measurement.noise:.1%}", _errors(measurement.error)]


def _errors(error: Error | Mapping[str, float] | None) -> str:
    if error is None:
        return ""
    values = error if isinstance(error, Mapping) else vars(error)
    return f"{values['max_rel']:.1e}, {values['mean_rel']:.1e}"


def _end_to_end(whole: Mapping[str, float] | None) -> str:
    """Time of a run from the host's memory and back, and its parts."""
    if not whole:
        return ""
    parts = [
        f"{name.replace('_', ' ')} {duration(whole[name])}" for name in whole if name not in ("kernel", "total")
    ]
    return f"{duration(whole['total'])}\n  {', '.join(parts)}"


def published_text(published: Mapping[str, Any] | None) -> str:
    """A report's figures of a step in one line."""
    if published is None:
        return ""
    shape = "x".join(str(size) for size in published["shape"])
    parts = [
        f"{published['ms']:g} ms" if "ms" in published else "",
        f"{published['gflops']:g} GFLOPS" if "gflops" in published else "",
        f"{published['gbps']:g} GB/s" if "gbps" in published else "",
        f"{published['of_library']:.1%} of the library" if "of_library" in published else "",
        f"max error {published['max_rel']:.2g}" if "max_rel" in published else "",
        f"mean error {published['mean_rel']:.2g}" if "mean_rel" in published else "",
        published.get("note", ""),
    ]
    return f"{', '.join(part for part in parts if part)} ({shape}, {published['hardware']})"


def slower_texts(ladder: Ladder, problem: Problem) -> list[str]:
    """A sentence for each step that is slower than the one before, with the reason where it is known."""
    rows, texts = _rows(ladder, problem), []
    for number in slower_steps(rows):
        label = rows[number]["label"]
        why = next(rung.step.slower for rung in ladder.rungs if rung.step.label == label)
        texts.append(f"{label} is slower than the step before{f': {why}' if why else ''}")
    return texts


def limits_text(limits: Limits) -> str:
    """The device's limits in one line; empty if none was measured."""
    parts = [
        f"reading {limits.read_gbps:.0f} GB/s" if limits.read_gbps else "",
        f"copying {limits.copy_gbps:.0f} GB/s" if limits.copy_gbps else "",
        f"multiply-adds {limits.tflops:.3g} TFLOPS" if limits.tflops else "",
    ]
    return f"Limits measured here: {', '.join(filter(None, parts))}" if any(parts) else ""
