"""Writes a distilled choice down as a Python function that imports nothing."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Mapping, Sequence

from tuner.declare.hardware import DeviceInfo
from tuner.declare.kernel import Kernel
from tuner.declare.problem import Operation
from tuner.export.symbolic import in_python, traced
from tuner.lookup.tuned import Column, TunedProblem
from tuner.report.distil import Distilled, Fork, Tree
from tuner.version import __version__

#: Length of lines.
WIDTH = 110
_CEIL_DIV = '''def ceil_div(numerator, denominator):
    """The quotient, rounded up."""
    return -(-numerator // denominator)'''
_CHOOSE = '''def choose({parameters}):
    """Kernel and config for {names}; the kernel is None where the library is to be used."""
    for number in ranked({names}):
        if LEGAL[number] is None or LEGAL[number]({names}):
            return CONFIGS[number]
    raise ValueError(f"no config is legal for {shown}")'''


def python_text(found: Distilled) -> str:
    """A module with ``CONFIGS``, a ``legal_N`` for each that asks something of the shape, and ``choose``.

    ``choose(dims..., layout)`` returns (kernel, config). A kernel of ``None`` stands for the library.
    """
    operation = found.shapes.rows[0].problem.operation
    rules = [_conditions(found, column) for column in found.columns]
    layouts = operation.layouts != ("",)
    parameters = ", ".join(operation.dims) + (f', layout="{operation.layouts[0]}"' if layouts else "")
    names = [*operation.dims, *(["layout"] if layouts else [])]
    parts = [
        f'"""{_about(found)}"""',
        "CONFIGS = (\n" + "".join(f"    {_written(column)},\n" for column in found.columns) + ")",
    ]
    if any("ceil_div(" in condition for rule in rules for condition in rule):
        parts.append(_CEIL_DIV)
    for number, rule in enumerate(rules):
        if rule:
            about = f'    """Whether config {number} may be used."""\n'
            parts.append(f"def legal_{number}({parameters}):\n{about}{_legal_body(rule)}")
    legal = ", ".join(f"legal_{number}" if rule else "None" for number, rule in enumerate(rules))
    about = '    """The configs\' numbers, the one to prefer first."""\n'
    shown = ", ".join(f"{name}={{{name}}}" for name in names)
    choose = _CHOOSE.format(parameters=parameters, names=", ".join(names), shown=shown)
    parts += [f"LEGAL = ({legal},)", f"def ranked({parameters}):\n{about}{_branches(found.tree, 1)}", choose]
    return "\n\n\n".join(parts) + "\n"


def _about(found: Distilled) -> str:
    problem, device = found.shapes.rows[0].problem, found.shapes.rows[0].device
    lines = [
        f"Which of {len(found.chosen)} configs to use for {problem.operation.name} {problem.dtype} on "
        f"{device.name}, whatever the shape.",
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


def _written(column: Column | None) -> str:
    if column is None:
        return "(None, {})"
    values = ", ".join(
        f"{json.dumps(name)}: {json.dumps(value) if isinstance(value, str) else repr(value)}"
        for name, value in column[1].items()
    )
    config = textwrap.fill(f"{{{values}}}", WIDTH - 4, initial_indent="        ", subsequent_indent="         ")
    return f"({json.dumps(column[0])},\n{config})"


def _legal_body(rules: Mapping[str, Sequence[str]]) -> str:
    """Conditions -> layouts for which they decide; no layout where there is nothing to choose."""
    lines = []
    for rule, layouts in rules.items():
        if not layouts:
            return f"    return {rule}"
        where = f'layout == "{layouts[0]}"' if len(layouts) == 1 else f"layout in {tuple(layouts)!r}"
        lines += [f"    if {where}:", f"        return {rule or 'True'}"]
    return "\n".join([*lines, "    return False"])


def _branches(tree: Tree, depth: int) -> str:
    indent = "    " * depth
    if not isinstance(tree, Fork):
        return f"{indent}return ({', '.join(map(str, tree))},)"
    yes, no = _branches(tree.yes, depth + 1), _branches(tree.no, depth)
    return f"{indent}if {tree.question}:\n{yes}\n{no}"


def _conditions(found: Distilled, column: Column | None) -> dict[str, list[str]]:
    """What a config asks of the dims, as Python -> the layouts for which; empty where it asks nothing."""
    if column is None:
        return {}
    shapes = found.shapes
    operation, device = shapes.rows[0].problem.operation, shapes.rows[0].device
    by_rule: dict[str, list[str]] = {}
    for layout in operation.layouts:
        rows = [place for place in shapes.rows if place.problem.layout == layout]
        rule = _rule_of(shapes.kernels[column[0]], column, rows or shapes.rows, layout, device)
        if rule is not None:
            by_rule.setdefault(rule, []).append(layout)
    if len(by_rule) == 1 and len(next(iter(by_rule.values()))) == len(operation.layouts):
        rule = next(iter(by_rule))
        return {rule: []} if rule else {}
    return by_rule or {"False": []}


def _rule_of(
    kernel: Kernel, column: Column, rows: Sequence[TunedProblem], layout: str, device: DeviceInfo
) -> str | None:
    """The conditions under which the rules hold as they do at a shape where they all do; None without one."""
    operation: Operation = rows[0].problem.operation
    binding = [constraint for constraint in kernel.constraints if not constraint.for_speed]
    for place in rows:
        like = place.problem
        problem = operation.problem(like.dims, like.dtype, layout, like.precision, like.epilogue)
        if not all(bool(constraint.rule(problem, device, column[1])) for constraint in binding):
            continue
        dims, trace = traced(problem)
        try:
            for constraint in binding:
                bool(constraint.rule(dims, device, column[1]))
        except Exception:  # a rule that cannot be followed holds for this one shape, as far as is known
            return " and ".join(f"{name} == {size}" for name, size in problem.shape)
        conditions = [in_python(assumption.condition) for assumption in trace.assumptions]
        return " and ".join(f"({one})" if " or " in one else one for one in conditions)
    return None
