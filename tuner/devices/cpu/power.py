"""Reads a CPU's energy counters.

They are RAPL's, as Linux shows them under ``/sys/class/powercap`` (kernel documentation, "Power Capping
Framework"): running totals in microjoules, one folder for each package, each with its own range for
wrap-around.
"""

from __future__ import annotations

from pathlib import Path

COUNTERS = Path("/sys/class/powercap")


class EnergyCounters:
    """The packages' energy counters of this machine.

    Attributes:
        trouble: Reason why they cannot be read; empty if they can.
    """

    def __init__(self, folder: Path = COUNTERS) -> None:
        """Looks for the counters.

        Args:
            folder: Folder of the counters.
        """
        # A package is "intel-rapl:0" (AMD's too), a part of it "intel-rapl:0:1".
        self._files = sorted(folder.glob("intel-rapl:[0-9]*/energy_uj"))
        self._files = [each for each in self._files if each.parent.name.count(":") == 1]
        self.trouble = ""
        if not self._files:
            self.trouble = f"Linux shows no energy counters of this CPU (no {folder}/intel-rapl:0)"
            return
        try:
            self.read_j()
        except (OSError, ValueError):
            self.trouble = (
                f"the energy counters of this CPU are for root alone (`chmod a+r {folder}/*/energy_uj` as root "
                "opens them)"
            )

    def read_j(self) -> list[float]:
        """Reads the joules of each package.

        Raises:
            OSError: A counter cannot be read.
        """
        return [int(each.read_text()) * 1e-6 for each in self._files]

    def between_j(self, before: list[float], after: list[float]) -> float:
        """Returns the joules of all packages between two readings; a counter may have wrapped around once."""
        total = 0.0
        for file, first, last in zip(self._files, before, after, strict=True):
            wrapped = last < first
            total += last - first
            if wrapped:
                total += int((file.parent / "max_energy_range_uj").read_text()) * 1e-6
        return total
