"""Reads the surveys of a plan."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from tuner.declare import catalogue
from tuner.declare.problem import Operation, Problem
from tuner.errors import InputError, PlanError, UnknownName
from tuner.nightly.plan.items import SurveyItem
from tuner.nightly.plan.toml_lines import KeyPath

if TYPE_CHECKING:
    from tuner.nightly.plan.schema import SurveyTable

#: Makes the error that tells a mistake with its line.
Complain = Callable[[KeyPath, object], PlanError]
#: Gives the problems of a plan that are of an operation.
Listed = Callable[[Path, Operation], tuple[Problem, ...]]


class SurveyReader:
    """Checks [[surveys]] tables."""

    def __init__(self, path: Path, complain: Complain, listed: Listed, regime: str) -> None:
        """Takes what they share.

        Args:
            path: The plan.
            complain: Makes errors.
            listed: Reads the problems of another plan.
            regime: Of surveys that name none; empty for what is usual on the device.
        """
        self._path, self._complain, self._listed, self._regime = path, complain, listed, regime

    def item(self, at: KeyPath, table: SurveyTable) -> SurveyItem:
        """A survey.

        Raises:
            PlanError: It names what there is not.
        """
        try:
            known = catalogue.from_file(self._beside(table.file)) if table.file else catalogue.builtin()
            operation = known.operation(table.operation)
        except InputError as error:
            raise self._complain((*at, "operation"), f"operation: {error}") from None
        try:
            known.of(operation.name, only=tuple(table.kernels or ()))
        except InputError as error:
            raise self._complain((*at, "kernels"), error) from None
        self._check(at, "layouts", table.layouts or (), operation.layouts)
        self._check(at, "dtype", [table.dtype] if table.dtype else (), operation.dtypes)
        self._check(at, "most", table.most, operation.dims)
        problems = self._problems(at, table, operation)
        if not table.drawn and not problems:
            raise self._complain(
                (*at, "drawn"), "drawn = false goes with shapes, got none; name a plan in shapes"
            )
        return SurveyItem(
            operation, known, table.seconds, table.regime or self._regime, problems, table.drawn, table.most,
            tuple(table.layouts or ()), table.dtype or "", tuple(table.kernels or ()), table.configs,
            table.per_problem, table.seed,
        )  # fmt: skip

    def _beside(self, path: str) -> Path:
        """A path that counts from the plan's folder."""
        return (self._path.parent / Path(path).expanduser()).resolve()

    def _check(self, at: KeyPath, key: str, names: object, known: tuple[str, ...]) -> None:
        for name in list(names):  # type: ignore[call-overload]
            if name not in known:
                raise self._complain((*at, key), UnknownName(key, name, known))

    def _problems(self, at: KeyPath, table: SurveyTable, operation: Operation) -> tuple[Problem, ...]:
        if table.shapes is None:
            return ()
        try:
            return self._listed(self._beside(table.shapes), operation)
        except InputError as error:
            raise self._complain((*at, "shapes"), f"shapes: {error}") from None
