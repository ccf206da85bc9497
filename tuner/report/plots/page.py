"""A ladder as one HTML page that needs no other file."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from html import escape
from string import Template
from typing import Any

from tuner.declare.problem import Problem
from tuner.report.rungs import Ladder, slower_steps
from tuner.results.measurement import headline

_PAGE = Template("""\
<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>$title</title>
<style>
body { font: 16px/1.5 system-ui, sans-serif; color: #1d2b30; max-width: 1080px; }
body { margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.7rem; line-height: 1.2; } h2 { font-size: 1.25rem; margin-top: 2.4rem; }
table { border-collapse: collapse; width: 100%; font-size: 0.86rem; font-variant-numeric: tabular-nums; }
th, td { text-align: right; padding: 0.35rem 0.5rem; border-bottom: 1px solid #e2e8ea; vertical-align: top; }
th:first-child, td:first-child { text-align: left; } th { border-bottom: 2px solid #9aa5a8; }
.config { color: #64757b; font-size: 0.78rem; } .library td { color: #a0444a; }
.note { color: #64757b; } .scroll { overflow-x: auto; }
img { max-width: 100%; } figure { margin: 1.4rem 0; } figcaption { color: #64757b; font-size: 0.86rem; }
dt { font-weight: 600; } dd { margin: 0 0 0.6rem 0; }
</style>
</head>
<body>
<h1>$title</h1>
<p class="note">$about</p>
$notes
$ladders
$sweeps
<h2>What the columns mean</h2>
<dl>$columns</dl>
</body>
</html>
""")

_COLUMNS = {
    "time": "Median of one run, in rounds in which every step and the library take turns.",
    "speed": "Work of the problem over time: 2MNK flops, or the fewest bytes that must move.",
    "step x, total x": "Speed-up over the previous step, and over the first.",
    "of library": "Speed over the library's.",
    "of limit": "Speed over the limit by this device's measured bandwidth and multiply-adds (roofline); above "
    "100 % if a cache holds the data.",
    "noise": "Median absolute deviation of the rounds over their median, scaled to a standard deviation.",
    "error": "Largest and mean difference from a float64 reference, over that reference's root mean square.",
    "published": "A public report's figures for this step on its own hardware: compare ratios, not times.",
}


def page(ladder: Ladder, drawn: Mapping[str, tuple[str, bytes]]) -> str:
    """The page.

    Args:
        ladder: What was climbed.
        drawn: Plots by name: caption and PNG.
    """
    rows = ladder.rows()
    parts = []
    for problem in dict.fromkeys(rung.problem for rung in ladder.rungs):
        own = [row for row in rows if row["problem"] == problem.to_json()]
        name = "-".join([*(str(size) for _, size in problem.shape), problem.layout]).strip("-")
        images = [
            _figure(drawn[f"{kind}-{name}"])
            for kind in ("ladder", "errors", "beside", "roofline")
            if f"{kind}-{name}" in drawn
        ]
        parts.append(
            f"<h2>{escape(str(problem))}</h2>\n{''.join(images[:1])}\n{_table(ladder, problem, own)}\n"
            f"{_why(ladder, own)}\n{''.join(images[1:])}"
        )
    sweeps = [_figure(image) for name, image in drawn.items() if name.startswith("sweep-")]
    return _PAGE.substitute(
        title=escape(ladder.plan.title),
        about=_about(ladder),
        notes="".join(f"<p>{escape(note)}</p>" for note in ladder.plan.notes),
        ladders="\n".join([*parts, _lessons(ladder)]),
        sweeps="<h2>Sweeps</h2>" + "\n".join(sweeps) if sweeps else "",
        columns="".join(f"<dt>{escape(name)}</dt><dd>{escape(text)}</dd>" for name, text in _COLUMNS.items()),
    )


def _about(ladder: Ladder) -> str:
    device, limits = ladder.device, ladder.limits
    parts = [
        f"{device.name}, driver {device.driver or 'unknown'}",
        ", ".join(f"{name} {version}" for name, version in sorted(ladder.versions.items()) if name != "driver"),
        f"{ladder.regime} caches, {ladder.measured_at[:19].replace('T', ' ')} UTC",
    ]
    if limits.read_gbps:
        told = f"Measured limits: reading {limits.read_gbps:.0f} GB/s, copying {limits.copy_gbps:.0f} GB/s"
        parts.append(told + (f", multiply-adds {limits.tflops:.3g} TFLOPS" if limits.tflops else ""))
    if ladder.plan.source:
        parts.append(f"Reproduces: {ladder.plan.source} ({ladder.plan.hardware})")
    return "<br>".join(escape(part) for part in parts)


def _figure(image: tuple[str, bytes]) -> str:
    caption, data = image
    text = base64.b64encode(data).decode()
    return (
        f'<figure><img alt="{escape(caption)}" src="data:image/png;base64,{text}">'
        f"<figcaption>{escape(caption)}</figcaption></figure>"
    )


def _table(ladder: Ladder, problem: Problem, rows: Sequence[Mapping[str, Any]]) -> str:
    library = ladder.library_of(problem)
    ends = any("end_to_end" in row for row in rows)
    names = [
        "step",
        "time",
        "speed",
        "step x",
        "total x",
        f"of {library.name if library else 'library'}",
        "of limit",
    ]
    names += ["noise", "max error", "mean error", *(["end to end"] if ends else []), "published"]
    head = "".join(f"<th>{escape(name)}</th>" for name in names)
    body = [f"<tr>{''.join(f'<td>{cell}</td>' for cell in _cells(row, problem, ends))}</tr>" for row in rows]
    for each in ladder.libraries:
        time_s, error = each.measurement.time_s, each.measurement.error
        if each.problem != problem or not time_s:
            continue
        limit = ladder.limits.least_s(problem) / time_s
        errors = [f"{error.max_rel:.1e}", f"{error.mean_rel:.1e}"] if error else ["", ""]
        cells = [escape(each.name), _ms(time_s), _speed(problem, time_s), "", "", ""]
        cells += [f"{limit:.1%}" if limit else "", f"{each.measurement.noise:.1%}", *errors, ""]
        cells += [""] if ends else []
        body.append(f'<tr class="library">{"".join(f"<td>{cell}</td>" for cell in cells)}</tr>')
    return f'<div class="scroll"><table><tr>{head}</tr>{"".join(body)}</table></div>'


def _ms(time_s: float) -> str:
    return f"{time_s * 1e3:.4g} ms"


def _speed(problem: Problem, time_s: float) -> str:
    if problem.work.flops >= 4 * problem.work.bytes:
        tflops = problem.work.flops / time_s * 1e-12
        return f"{tflops:.3g} TFLOPS" if tflops >= 1 else f"{tflops * 1e3:.3g} GFLOPS"
    return f"{problem.work.bytes / time_s * 1e-9:.3g} GB/s"


def _cells(row: Mapping[str, Any], problem: Problem, ends: bool) -> list[str]:
    config = " ".join(f"{name}={value}" for name, value in row["config"].items())
    first = f'{escape(row["label"])}<br><span class="config">{escape(config)}</span>'
    if not row["time_s"]:
        said = escape(f"{row['outcome']} {headline(row['reason'])[:100]}")
        return [first, said, *[""] * (9 if ends else 8), _published(row["published"])]
    error, whole = row["error"], row.get("end_to_end")
    return [
        first, _ms(row["time_s"]), _speed(problem, row["time_s"]),
        *(f"{row[key]:.2f}" if row[key] else "" for key in ("step_speedup", "total_speedup")),
        *(f"{row[key]:.1%}" if row[key] else "" for key in ("of_library", "of_limit")),
        f"{row['noise']:.1%}",
        *([f"{error['max_rel']:.1e}", f"{error['mean_rel']:.1e}"] if error else ["", ""]),
        *([_ends(whole)] if ends else []),
        _published(row["published"]),
    ]  # fmt: skip


def _ends(whole: Mapping[str, float] | None) -> str:
    if not whole:
        return ""
    parts = ("allocate", "to_device", "to_host")
    told = ", ".join(f"{name.replace('_', ' ')} {_ms(whole[name])}" for name in parts if name in whole)
    return f'{_ms(whole["total"])}<br><span class="config">{escape(told)}</span>'


def _published(told: Mapping[str, Any] | None) -> str:
    if told is None:
        return ""
    parts = [
        f"{told['ms']:g} ms" if "ms" in told else "",
        f"{told['gflops']:g} GFLOPS" if "gflops" in told else "",
        f"{told['gbps']:g} GB/s" if "gbps" in told else "",
        f"{told['of_library']:.1%} of the library" if "of_library" in told else "",
        f"errors {told['max_rel']:.1e}, {told['mean_rel']:.1e}" if "mean_rel" in told else "",
        str(told.get("note", "")),
    ]
    where = f"{'x'.join(str(size) for size in told['shape'])}, {told['hardware']}"
    text = escape("; ".join(part for part in parts if part))
    return f'{text}<br><span class="config">{escape(where)}</span>'


def _why(ladder: Ladder, rows: Sequence[Mapping[str, Any]]) -> str:
    """Returns steps that are slower than the previous one, with the reason."""
    found = []
    for number in slower_steps(rows):
        row = rows[number]
        reason = next((rung.step.slower for rung in ladder.rungs if rung.step.label == row["label"]), "")
        told = f"{row['label']} is slower than the step before ({row['step_speedup']:.2f} x). {reason}"
        found.append(f"<p>{escape(told.strip())}</p>")
    return "".join(found)


def _lessons(ladder: Ladder) -> str:
    told = {rung.step.kernel.name: (rung.step.lesson or rung.step.kernel.idea) for rung in ladder.rungs}
    items = "".join(f"<dt>{escape(name)}</dt><dd>{escape(text)}</dd>" for name, text in told.items())
    return f"<h2>What each step is about</h2><dl>{items}</dl>" if items else ""
