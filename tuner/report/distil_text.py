"""Writes a distilled choice down as a Python function that imports nothing."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Mapping, Sequence

from tuner.declare.hardware import DeviceInfo
from tuner.declare.kernel import Kernel
from tuner.declare.problem import Operation
from tuner.export.symbolic import in_python, traced
from tuner.lookup.tuned import Column, Tuned
from tuner.report.distil import Distilled
from tuner.report.distil_tree import Fork, Tree
from tuner.version import __version__

#: Length of lines.
WIDTH = 110
_CEIL_DIV = '''def ceil_div(numerator, denominator):
    """The quotient, rounded up."""
    return -(-numerator // denominator)'''


def python_text(found: Distilled) -> str:
    """A module with ``CONFIGS``, a ``legal_N`` for each that asks something of the shape, and ``choose``.

    ``choose(dims..., layout)`` returns (kernel, config). A kernel of ``None`` stands for the library.
    """
    shapes = found.shapes
    place, operation = shapes.rows[0], shapes.rows[0].problem.operation
    columns = [shapes.columns[number] for number in found.chosen]
    rules = [_conditions(found, column) for column in columns]
    parameters = _parameters(operation)
    parts = [
        f'"""{_about(found, place)}"""',
        "CONFIGS = (\n" + "".join(f"    {_written(column)},\n" for column in columns) + ")",
    ]
    if any("ceil_div(" in each for rule in rules for each in rule):
        parts.append(_CEIL_DIV)
    for number, rule in enumerate(rules):
        if rule:
            told = f'    """Whether config {number} may be used."""\n'
            parts.append(f"def legal_{number}({parameters}):\n{told}{_legal_body(rule)}")
    legal = ", ".join(f"legal_{number}" if rule else "None" for number, rule in enumerate(rules))
    parts.append(f"LEGAL = ({legal},)")
    parts.append(f"def ranked({parameters}):\n{_ranked_about()}{_branches(found.tree, 1)}")
    parts.append(_choose(operation, parameters))
    return "\n\n\n".join(parts) + "\n"


def _about(found: Distilled, place: Tuned) -> str:
    problem = place.problem
    lines = [
        f"Which of {len(found.chosen)} configs to use for {problem.operation.name} {problem.dtype} on "
        f"{place.device.name}, whatever the shape.",
        "",
        f"Written by `tuner distil` of tile-tuner {__version__} from {len(found.shapes.rows)} tuned "
        f"shapes, timed {found.shapes.regime}. It imports nothing. Cost as a fraction of the best known speed:",
        f"- the best of these configs: {found.best}",
        f"- the one that `choose` takes: {found.decided}",
        f"- at shapes left out of all choices: {found.left_out}",
    ]
    return "\n".join(
        textwrap.fill(line, WIDTH, subsequent_indent="  " if line[:1] == "-" else "") for line in lines
    )


def _parameters(operation: Operation) -> str:
    layout = f', layout="{operation.layouts[0]}"' if operation.layouts != ("",) else ""
    return ", ".join(operation.dims) + layout


def _written(column: Column | None) -> str:
    if column is None:
        return "(None, {})"
    values = ", ".join(f"{json.dumps(name)}: {_literal(value)}" for name, value in column[1].items())
    told = textwrap.fill(f"{{{values}}}", WIDTH - 4, initial_indent="        ", subsequent_indent="         ")
    return f"({json.dumps(column[0])},\n{told})"


def _literal(value: object) -> str:
    return json.dumps(value) if isinstance(value, str) else repr(value)


def _legal_body(rules: Mapping[str, Sequence[str]]) -> str:
    """Conditions -> layouts for which they decide; no layout where there is nothing to choose."""
    lines = []
    for rule, layouts in rules.items():
        if not layouts:
            return f"    return {rule}"
        asked = f'layout == "{layouts[0]}"' if len(layouts) == 1 else f"layout in {tuple(layouts)!r}"
        lines += [f"    if {asked}:", f"        return {rule or 'True'}"]
    return "\n".join([*lines, "    return False"])


def _ranked_about() -> str:
    return '    """The configs\' numbers, the one to prefer first."""\n'


def _branches(tree: Tree, depth: int) -> str:
    indent = "    " * depth
    if not isinstance(tree, Fork):
        ranking = ", ".join(map(str, tree.ranking))
        return f"{indent}return ({ranking},)"
    return "\n".join(
        [
            f"{indent}if {tree.question.text}:",
            _branches(tree.yes, depth + 1),
            _branches(tree.no, depth),
        ]
    )


def _choose(operation: Operation, parameters: str) -> str:
    names = [*operation.dims, *(["layout"] if operation.layouts != ("",) else [])]
    given, shown = ", ".join(names), ", ".join(f"{name}={{{name}}}" for name in names)
    return "\n".join(
        [
            f"def choose({parameters}):",
            f'    """Kernel and config for {given}; the kernel is None where the library is to be used."""',
            f"    for number in ranked({given}):",
            f"        if LEGAL[number] is None or LEGAL[number]({given}):",
            "            return CONFIGS[number]",
            f'    raise ValueError(f"no config is legal for {shown}")',
        ]
    )


def _conditions(found: Distilled, column: Column | None) -> dict[str, list[str]]:
    """What a config asks of the dims, as Python -> the layouts for which; empty where it asks nothing."""
    if column is None:
        return {}
    shapes = found.shapes
    kernel = shapes.kernels[column[0]]
    operation, device = shapes.rows[0].problem.operation, shapes.rows[0].device
    by_rule: dict[str, list[str]] = {}
    for layout in operation.layouts:
        rows = [place for place in shapes.rows if place.problem.layout == layout]
        told = _rule_of(kernel, column, rows or shapes.rows, layout, device)
        if told is not None:
            by_rule.setdefault(told, []).append(layout)
    if len(by_rule) == 1 and len(next(iter(by_rule.values()))) == len(operation.layouts):
        rule = next(iter(by_rule))
        return {rule: []} if rule else {}
    return by_rule or {"False": []}


def _rule_of(
    kernel: Kernel, column: Column, rows: Sequence[Tuned], layout: str, device: DeviceInfo
) -> str | None:
    """The conditions under which the rules hold as they do at a shape where they all do; None without one."""
    operation = rows[0].problem.operation
    for place in rows:
        problem = operation.problem(
            place.problem.dims, place.problem.dtype, layout, place.problem.precision, place.problem.epilogue
        )
        binding = [each for each in kernel.constraints if not each.for_speed]
        if not all(bool(each.rule(problem, device, column[1])) for each in binding):
            continue
        dims, trace = traced(problem)
        try:
            for constraint in binding:
                bool(constraint.rule(dims, device, column[1]))
        except Exception:  # a rule that cannot be followed holds for this one shape, as far as is known
            return " and ".join(f"{name} == {size}" for name, size in problem.shape)
        return " and ".join(_nested(in_python(each.condition)) for each in trace.assumptions)
    return None


def _nested(condition: str) -> str:
    return f"({condition})" if " or " in condition else condition
