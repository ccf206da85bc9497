"""How far a plan's problems are on a device before a night: their champions, what is done, what is stale."""

from __future__ import annotations

from collections.abc import Mapping

from tuner.declare.hardware import DeviceInfo
from tuner.declare.kernel import Kernel
from tuner.errors import InputError
from tuner.lookup.stale import installed_compiler, staleness
from tuner.night.plan_items import PlanItem
from tuner.results.objectives import ErrorLimit
from tuner.results.record import Champion, ProblemKey, Record, Role
from tuner.store import Store, watched
from tuner.study.session import study_name

#: Largest number of finals of a problem while its champion stays provisional: two in each of three nights.
FINALS_IN_DOUBT = 6


def kernels_of(item: PlanItem, target: str) -> tuple[Kernel, ...]:
    """Returns the kernels that compete for an item.

    Raises:
        InputError: There is no kernel for the target.
    """
    found = item.catalogue.serving(item.problem, target, item.kernels)
    if not found:
        raise InputError(f"{item.problem.operation.name} has no kernel for {target}")
    return found


def study_of(item: PlanItem, device: DeviceInfo, kernels: tuple[Kernel, ...]) -> str:
    """Names the study of an item on a device."""
    return study_name(
        ProblemKey.of(item.problem), device, item.regime, kernels, item.objectives, item.error_limit
    )  # fmt: skip


class Standing:
    """What is stored of a plan's problems on one device."""

    def __init__(self, store: Store, device: DeviceInfo, versions: Mapping[str, str] | None = None) -> None:
        """Reads which problems have a champion.

        Args:
            store: Where records are.
            device: The device.
            versions: Versions on the device's machine; by default ``compiler`` as installed here.
        """
        self._store, self._device = store, device
        self._versions = versions or {"compiler": installed_compiler(device.kind)}
        self._crowned = store.crowned(device)
        self._uses: dict[ProblemKey, float] | None = None

    def champion(self, item: PlanItem) -> Champion | None:
        """Returns the reigning champion of a problem."""
        key = ProblemKey.of(item.problem)
        if (key, item.regime) not in self._crowned:
            return None
        return self._store.champion(key, self._device, item.regime)

    def is_done(self, item: PlanItem, kernels: tuple[Kernel, ...], champion: Champion | None) -> bool:
        """True if this study reached its finals with these kernels, as they are now, driver and compiler."""
        if champion is None or not _accurate(champion, item):
            return False
        name = study_of(item, self._device, kernels)
        held = champion.record.study == name and not self._is_outdated(champion.record, item)
        if held and not champion.doubts:
            return True
        # The champion may come from a later study of other kernels or objectives.
        finals = self._store.records(problem=ProblemKey.of(item.problem), device=self._device, role=Role.FINAL)
        runs = {each.session for each in finals if each.study == name and not self._is_outdated(each, item)}
        return len(runs) >= (FINALS_IN_DOUBT if champion.doubts else 1)

    def why_stale(self, item: PlanItem, champion: Champion | None) -> str:
        """What has changed of kernel, compiler, driver and library since the champion; empty if nothing has."""
        if champion is None:
            return ""
        stale, why = staleness(champion.record, item.catalogue, self._device, self._versions)
        return why if stale else ""

    def uses(self, item: PlanItem) -> float:
        """Seconds that programs would have saved with a champion of this problem, as far as counted."""
        if self._uses is None:
            counted = watched.demand(self._store, device=self._device.name)
            self._uses = {each.problem: each.saves_s for each in counted}
        return self._uses.get(ProblemKey.of(item.problem), 0.0)

    def _is_outdated(self, record: Record, item: PlanItem) -> bool:
        """True if kernel, compiler, driver or library of a record here are known to have changed."""
        return bool(staleness(record, item.catalogue, self._device, self._versions)[0])


def _accurate(champion: Champion, item: PlanItem) -> bool:
    """True if a champion is within the error limit, by its and the library's errors in the finals."""
    if item.error_limit is None:
        return True
    beside = champion.baseline.measurement.error if champion.baseline is not None else None
    limit = ErrorLimit.beside(item.error_limit, beside, item.problem)
    return not limit.complaint(champion.record.measurement.error, finals=True)
