"""What a server offers to jobs: the devices of its machine, or a cluster."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tuner.devices.detect import DetectedDevice
from tuner.errors import NothingFound, UnknownName
from tuner.requests.fleet_jobs import ClusterChoice


@dataclass(frozen=True)
class Offer:
    """The devices that a node offers to jobs.

    Attributes:
        devices: Spec -> the devices of this machine that it names.
        cluster: The cluster that runs the jobs in their place; None without one.
    """

    devices: Mapping[str, tuple[DetectedDevice, ...]]
    cluster: ClusterChoice | None = None

    @classmethod
    def of(cls, found: Sequence[DetectedDevice], cluster: ClusterChoice | None = None) -> Offer:
        """Devices of this machine, each by its spec; ``cuda`` names all GPUs where they are of one kind."""
        named: dict[str, tuple[DetectedDevice, ...]] = {each.spec: (each,) for each in found}
        gpus = tuple(each for each in found if each.spec.startswith("cuda:"))
        if len(gpus) > 1 and len({each.info.name for each in gpus}) == 1:
            named["cuda"] = gpus
        return cls(named, cluster)

    @property
    def names(self) -> list[str]:
        """What a job may call its device, at the least; the first is that of a job that names none."""
        return self.cluster.names if self.cluster is not None else list(self.devices)

    def targets(self, spec: str) -> tuple[str, ...]:
        """What kernels have to be for on a device: one of these."""
        return self.cluster.targets(spec) if self.cluster is not None else (self.devices[spec][0].target,)

    def spec(self, text: str) -> str:
        """The spec of a device that is named by spec, name or uuid; the first if empty.

        Raises:
            UnknownName: It is not offered.
            NothingFound: No device is offered.
        """
        if self.cluster is not None:
            return self.cluster.spec(text)
        if not self.devices:
            raise NothingFound("this node offers no device to jobs; start it with --device SPEC")
        if not text:
            return next(iter(self.devices))
        for spec, found in self.devices.items():
            if text in (spec, found[0].info.uuid) or text.casefold() == found[0].info.name.casefold():
                return spec
        names = [*self.devices, *(found[0].info.name for found in self.devices.values())]
        raise UnknownName("device of this node", text[:200], names)
