"""Makes the page that cpu_results writes: a table of its rows, and means of groups of them."""

from __future__ import annotations

import math
import re
from typing import Any

from tuner.results.measurement import compare, noise

#: What the kernels are to reach: NumPy's time over ours as installed, and with the best core type: mean, least.
#: Against NumPy as installed it supposes a CPU with AVX-512 that OpenBLAS takes for an older one.
GOALS = {
    "gemm N = 512 to 4096": ("1.7", "1.02", "0.98"),
    "gemm N = 32 to 256": ("1.2", "1.0", ""),
    "gemm thin and odd": ("1.3", "1.0", ""),
    "gemm float64": ("1.7", "", "0.97"),
    "transpose": ("15", "", ""),
    "gemv": ("1.0", "", ""),
}


def best_core_type(kept: dict[str, Any]) -> str:
    """The core type to tell OpenBLAS; empty where none is 3 % faster than its own choice."""
    own, *others = kept["core_types"].items()
    others = [each for each in others if f"({each[0]})" not in own[0]]
    name, flops = max(others, key=lambda each: each[1], default=own)
    return str(name) if flops > 1.03 * own[1] else ""


def file_name(info: Any) -> str:
    """Of the page."""
    return "cpu-" + re.sub(r"[^a-z0-9]+", "-", info.name.lower()).strip("-") + ".md"


def geometric_mean(values: list[float]) -> float:
    """Of ratios."""
    return math.exp(sum(math.log(each) for each in values) / len(values)) if values else math.nan


def ratio(found: dict[str, Any], other: str = "NumPy") -> Any:
    """How much faster ours is."""
    return compare(found["times_s"]["ours"], found["times_s"][other])


def peak_lines(kept: dict[str, Any], info: Any) -> list[str]:
    """Peaks as multiply-adds a cycle x lanes x clock, dtype by dtype and count of cores by count."""
    lines = []
    for cores, clock_hz in sorted(kept["clocks_hz"].items(), key=lambda each: int(each[0])):
        for dtype, size in (("float32", 4), ("float64", 8)):
            flops, lanes = kept["peaks_flops"][f"{dtype} {cores}"], info.vector_bytes // size
            each = flops / int(cores) / (2 * lanes * clock_hz)
            lines.append(
                f"  - {dtype}, cores: {cores}: {flops / 1e9:.1f} GFLOPS = {each:.2f} multiply-adds a cycle"
                f" x {lanes} lanes x {clock_hz / 1e9:.2f} GHz for each core"
            )
    return lines


def cells(row: Any, kept: dict[str, Any]) -> list[str]:
    """A row of the table."""
    done, problem = kept["rows"][row.key], row.item.problem
    mine, work = done["installed"], problem.work
    time_s, theirs_s = mine["medians_s"]["ours"], mine["medians_s"]["NumPy"]
    gemm = problem.operation.name == "gemm"
    speed, unit = (work.flops, "GFLOPS") if gemm else (work.bytes, "GB/s")
    of_limit = "-"
    if gemm:
        of_limit = f"{work.flops / time_s / kept['peaks_flops'][f'{problem.dtype} {row.cores}']:.0%} of peak"
    else:
        plain = {name: mine["medians_s"][name] for name in mine["medians_s"] if name[:4] in ("read", "copy")}
        if plain:
            name, least_s = min(plain.items(), key=lambda each: each[1])
            of_limit = f"{least_s / time_s:.2f} of {name.split()[0]}"
    against = [f"**{ratio(each).ratio:.3f}** ({ratio(each).low:.3f} to {ratio(each).high:.3f})" for each in
               (mine, done.get("best", mine))]  # fmt: skip
    config = " ".join(f"{name}={value}" for name, value in done["champion"]["config"].items())
    return [
        " ".join(row.key.split()[:-2]), str(row.cores), f"{speed / time_s / 1e9:.1f} {unit}", of_limit,
        f"{speed / theirs_s / 1e9:.1f}", against[0], against[1] if gemm or "best" in done else "-",
        f"{noise(mine['times_s']['ours']):.1%}, {noise(mine['times_s']['NumPy']):.1%}",
        f"`{done['champion']['kernel']}` {config}",
    ]  # fmt: skip


def page(rows: list[Any], kept: dict[str, Any], info: Any) -> str:
    """The Markdown."""
    done = [row for row in rows if row.key in kept["rows"]]
    types = ", ".join(f"{name}: {flops / 1e9:.1f}" for name, flops in kept["core_types"].items())
    own = kept["blas"]
    best = best_core_type(kept) or "its own choice, so that the two columns are one measurement"
    loads, dates = ([kept["rows"][row.key][name] for row in done] or ["-"] for name in ("load", "date"))
    load = "-" if loads == ["-"] else f"{min(loads):.1f} to {max(loads):.1f}"
    lines = [
        f"# CPU kernels on {info.name}",
        "",
        f"- {own['library']}, core type {own.get('blas_core_type')}; Numba {kept['numba']}",
        "- Peak, by multiply-adds in registers alone (`kernels/limits/multiply_add`); the clock, by one",
        "  dependent chain of them, 4 cycles each:",
        *peak_lines(kept, info),
        f"- NumPy at 1024^3 on one core in GFLOPS, by OpenBLAS's core type: {types}. Best: {best}.",
        f"- Load average: {load}; dates: {min(dates)} to {max(dates)} (UTC)",
        "- Ratios are median times of NumPy over ours, round by round, with 95 % intervals; operands stay the",
        "  same. NumPy has as many threads as the row has cores. Made by `scripts/bench/cpu_results`.",
        "",
    ]
    titles = ("problem", "cores", "ours", "of the limit", "NumPy", "NumPy / ours", "best core type / ours",
              "noise: ours, NumPy's", "champion")  # fmt: skip
    lines += ["| " + " | ".join(titles) + " |", "|" + "---|" * len(titles)]
    lines += ["| " + " | ".join(cells(row, kept)) + " |" for row in done]
    lines += [
        "",
        "| group | rows | NumPy / ours, geometric mean (goal) | best core type / ours (goal) | least (goal) |",
        "|---|---|---|---|---|",
    ]
    for group in dict.fromkeys(row.group for row in done):
        found = [kept["rows"][row.key] for row in done if row.group == group]
        numpy = [ratio(each["installed"]).ratio for each in found]
        best = [ratio(each.get("best", each["installed"])).ratio for each in found]
        said = zip((geometric_mean(numpy), geometric_mean(best), min(best)), GOALS[group], strict=True)
        means = " | ".join(f"{value:.3f} ({goal})" if goal else f"{value:.3f}" for value, goal in said)
        lines.append(f"| {group} | {len(found)} | {means} |")
    missing = [row.key for row in rows if row.key not in kept["rows"]]
    lines += ["", f"Not measured yet: {', '.join(missing)}."] if missing else []
    return "\n".join([*lines, ""])
