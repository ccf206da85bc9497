"""The result of measuring a config: outcome, samples, error, compiler's report. Plain frozen data."""

import enum
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

#: Times within this share of each other are reported as the same (NVBench uses the same threshold).
SAME_WITHIN = 0.005
#: Circumstance of a finalist: kinds of inputs at which it kept the promise of a precision other than ``ieee``.
KINDS_OF_INPUTS = "kinds_of_inputs"
#: Circumstances of a final on a CPU: the library's time over its own, as a program may call both.
STATES = BACK_TO_BACK, IN_TURN, AFTER_IDLING = "back_to_back", "in_turn", "after_idling"
#: The class of bits of a library whose runs on the same inputs differ.
VARIES = "varies"
#: Why a config whose bits vary is not timed.
NOT_THE_SAME = "two runs on the same inputs gave different bits"
#: A time longer than the library's by more than this share is slower than the library.
SLOWER = 0.03
#: Log of time that a config is expected to fall behind for each doubling of a dim from where it was timed.
FALLS_BEHIND = 0.05
#: Coverage of intervals.
CONFIDENCE = 0.95
#: Scales a median absolute deviation to a normal's standard deviation.
MAD_TO_SIGMA = 1.4826


def noise(samples: Sequence[float]) -> float:
    """Median absolute deviation over the median, as a normal's standard deviation; 0 below two samples."""
    if len(samples) < 2:
        return 0.0
    middle = statistics.median(samples)
    return MAD_TO_SIGMA * statistics.median(abs(x - middle) for x in samples) / middle


def median_interval(samples: Sequence[float], confidence: float = CONFIDENCE) -> tuple[float, float]:
    """Returns a confidence interval of the median from order statistics, for any distribution.

    The ranks k and n+1-k enclose the median with probability 1 - 2 * P(Binomial(n, 1/2) < k). With fewer
    than six samples no rank reaches 95 %, and the whole range is returned.

    Args:
        samples: At least one.
        confidence: Probability that the interval contains the median.
    """
    ordered, n = sorted(samples), len(samples)
    tail, rank = 0.0, 0
    for k in range((n + 1) // 2):
        tail += math.comb(n, k) / (1 << n)
        if 2 * tail > 1 - confidence:
            break
        rank = k + 1
    rank = max(rank, 1)
    return ordered[rank - 1], ordered[n - rank]


@dataclass(frozen=True)
class Comparison:
    """How one thing's time compares with another's, measured in alternating rounds.

    Attributes:
        ratio: Median of time(other) / time(this) over rounds; above 1 this is faster.
        low: Lower end of the ratio's interval.
        high: Upper end.
        verdict: ``faster``, ``same``, ``slower`` or ``ambiguous``.
    """

    ratio: float
    low: float
    high: float
    verdict: str


def compare(this_s: Sequence[float], other_s: Sequence[float]) -> Comparison:
    """Compares times taken in the same rounds, in seconds.

    The verdict is ``same`` below a difference of `SAME_WITHIN`. Beyond it, it is ``faster`` or ``slower`` if
    the interval excludes 1, else ``ambiguous``.

    Args:
        this_s: One time per round.
        other_s: The other's times, one for each of the same rounds.
    """
    ratios = [other / this for this, other in zip(this_s, other_s, strict=True)]
    return _judged(statistics.median(ratios), *median_interval(ratios))


def compare_apart(this_s: Sequence[float], other_s: Sequence[float]) -> Comparison:
    """Compares times of different rounds, in seconds. It cannot account for drift.

    The ratio is that of the medians. Its interval comes from the ends of their intervals.

    Args:
        this_s: At least one.
        other_s: The other's times, at least one.
    """
    (low, high), (other_low, other_high) = median_interval(this_s), median_interval(other_s)
    ratio = statistics.median(other_s) / statistics.median(this_s)
    return _judged(ratio, other_low / high, other_high / low)


def _judged(ratio: float, low: float, high: float) -> Comparison:
    if abs(ratio - 1) < SAME_WITHIN:
        verdict = "same"
    elif low > 1:
        verdict = "faster"
    elif high < 1:
        verdict = "slower"
    else:
        verdict = "ambiguous"
    return Comparison(ratio, low, high, verdict)


#: Words in the reason of a failure for lack of memory.
OUT_OF_MEMORY = "out of memory"


def memory_reason(error: MemoryError) -> str:
    """Returns the reason reported for a failed allocation."""
    return f"{OUT_OF_MEMORY}: {error}" if str(error) else OUT_OF_MEMORY


class Outcome(enum.StrEnum):
    """How the measurement of a config ended."""

    MEASURED = "MEASURED"
    INVALID = "INVALID"
    COMPILE_FAILED = "COMPILE_FAILED"
    LAUNCH_FAILED = "LAUNCH_FAILED"
    WRONG_RESULT = "WRONG_RESULT"
    INACCURATE = "INACCURATE"
    NOT_REPEATABLE = "NOT_REPEATABLE"
    OTHER_BITS = "OTHER_BITS"
    TIMED_OUT = "TIMED_OUT"
    CRASHED = "CRASHED"
    PRUNED = "PRUNED"

    @property
    def failed(self) -> bool:
        """True if the config has no valid time and none can be expected."""
        return self not in (Outcome.MEASURED, Outcome.PRUNED)


def totals(outcomes: Mapping[str, int]) -> dict[str, int]:
    """``total``, ``measured`` and ``failed`` trials, then each outcome's count."""
    failed = sum(count for name, count in outcomes.items() if Outcome(name).failed)
    measured = outcomes.get(Outcome.MEASURED.value, 0)
    return {"total": sum(outcomes.values()), "measured": measured, "failed": failed, **outcomes}


@dataclass(frozen=True)
class Error:
    """Distance of an output from its float64 reference.

    Attributes:
        max_rel: max |out - ref| / rms(ref).
        rms_rel: ||out - ref|| / ||ref||.
        bound_ratio: max |out - ref| / tolerance; above 1 the result is wrong.
        mean_rel: mean |out - ref| / rms(ref); 0 in older records.
    """

    max_rel: float
    rms_rel: float
    bound_ratio: float
    mean_rel: float = 0.0


@dataclass(frozen=True)
class CompileReport:
    """The compiler's report on a rendered kernel; 0 for what it does not report.

    Attributes:
        registers: 32-bit registers that a thread uses.
        spill_bytes: Bytes that a thread stores to local memory for lack of registers.
        shared_bytes: Static shared memory of a block.
        local_bytes: Stack frame of a thread.
        binary_hash: Hash of the machine code; kernels with equal hashes run alike.
        compiler: Name and version.
        launch_hash: `tuner.declare.kernel.Kernel.launch_hash` of what was measured; empty in older records.
    """

    registers: int = 0
    spill_bytes: int = 0
    shared_bytes: int = 0
    local_bytes: int = 0
    binary_hash: str = ""
    compiler: str = ""
    launch_hash: str = ""


@dataclass(frozen=True)
class Measurement:
    """Everything that is known of a config after its trial.

    Attributes:
        outcome: How it ended.
        reason: Why, for every outcome but MEASURED.
        samples_s: One time per launch, in seconds, in the order of measurement.
        error: Distance from the reference; None if it was not verified.
        compiled: The compiler's report; None if it did not compile.
        stages_s: Seconds spent in ``compile``, ``load``, ``verify`` and ``time``.
        circumstances: Observations while timing: ``sm_clock_hz``, ``temperature_c``, ``power_w``,
            ``throttle_reasons``, ``throttled`` (samples taken again for a low clock), ``occupancy`` (share
            of a multiprocessor's threads that are resident); ``load_1min`` and ``clock_hz`` of a CPU; if energy
            is an objective, ``energy_j`` of one run, from ``power_w`` during back-to-back runs; under an error
            limit, the keys of `tuner.results.objectives.ErrorLimit`; for finals and baselines, what other
            processes did meanwhile (`tuner.devices.machine_load`); for finals, reasons to doubt them
            (`doubts`), and on a CPU `STATES`.
        bits: Class of its bits, a hash of its outputs at fixed inputs; empty if it was not measured
            (`tuner.workers.further_checks.class_of_bits`).
        rows: Class of its rows, a hash that is the same for any number of them; empty if it was not proven
            (`tuner.workers.further_checks.class_of_rows`).
    """

    outcome: Outcome
    reason: str = ""
    samples_s: tuple[float, ...] = ()
    error: Error | None = None
    compiled: CompileReport | None = None
    stages_s: Mapping[str, float] = field(default_factory=dict)
    circumstances: Mapping[str, float] = field(default_factory=dict)
    bits: str = ""
    rows: str = ""

    @property
    def time_s(self) -> float | None:
        """Median of the samples in seconds; None if there are none."""
        return statistics.median(self.samples_s) if self.samples_s else None

    @property
    def states(self) -> dict[str, float]:
        """The library's time over its own in each of `STATES`; empty unless they were timed."""
        return {name: self.circumstances[name] for name in STATES if name in self.circumstances}

    @property
    def noise(self) -> float:
        """Median absolute deviation over the median, scaled to a normal's standard deviation."""
        return noise(self.samples_s)


def under(circumstances: Mapping[str, float], measured: Iterable[Measurement]) -> list[Measurement]:
    """Adds circumstances to the measurements that were timed."""
    return [
        replace(own, circumstances={**own.circumstances, **circumstances}) if own.samples_s else own
        for own in measured
    ]


def headline(reason: str) -> str:
    """The line of a reason that says most: Numba's errors begin with one that names a step of its own."""
    lines = [line.strip() for line in reason.splitlines() if line.strip()] or [""]
    kind, step, _ = lines[0].partition("Failed in nopython mode pipeline")
    return (kind + lines[1] if step and len(lines) > 1 else lines[0]).rstrip(": ")


# --- reasons to doubt times ----------------------------
#
# A champion is provisional if its times are noisy, if other processes used the cores, or if the library's times
# contradict each other. Records keep what was observed as circumstances, and what is too much is decided here.
# So a record made before circumstances were kept is never in doubt.

#: A champion's times are not credible if their noise exceeds this.
MUCH_NOISE = 0.10
#: Two times of one library contradict each other if they differ by this factor. OpenBLAS's core types for AVX2
#: and AVX-512 differed by up to 1.88 times on a quiet machine (docs/results/cpu-*.md).
APART = 2.0
#: Share of a CPU's cores that other processes may use during the finals. On two cores in use by others, NumPy
#: was 74 to 109 times slower than the champion in all of its runs, and the noise was below `MUCH_NOISE`.
MUCH_TAKEN = 0.10
#: Circumstances: noise of the finals' times; share of the cores that other processes used; the library's time
#: in the finals over that before the search, or the other way round; over its best time of earlier runs; and
#: over that of OpenBLAS's other core types, or the other way round.
NOISE, TAKEN = "finals_noise", "others_share"
SEARCH, EARLIER = "baseline_apart_from_search", "baseline_over_earlier"
CORE_TYPE = "baseline_apart_by_core_type"
#: Circumstances of a machine: cores that other processes used, share of the cores' time the hypervisor gave
#: to others, share of the time in which a control group's quota throttled the study, number of times that a
#: core was throttled for heat, other processes that compute on the GPU, share of time the GPU was busy before
#: the study.
OTHERS_CORES, STEAL, QUOTA, HEAT = "others_cores", "steal_share", "quota_share", "heat_events"
OTHERS_PROCESSES, OTHERS_GPU = "others_processes", "others_gpu_share"
#: A quarter of a core is more than an idle machine's own services use, and it delays every kernel that has a
#: thread on each core. On machines of many cores the services grow with the cores.
BUSY_CORES, BUSY_SHARE_OF_CORES = 0.25, 0.01
#: Shares of time above which a warning is given.
MUCH_STEAL, MUCH_QUOTA, BUSY_GPU = 0.02, 0.01, 0.10
#: NVML's reasons for low clocks that do not belong to normal operation: the hardware's slowdown, heat seen
#: by software, heat seen by hardware, the power brake (NVML API reference, nvmlClocksEventReasons).
SLOWED = {0x08: "hardware slowdown", 0x20: "heat", 0x40: "heat", 0x80: "power brake"}
#: Circumstance -> what is too much, and what is said then of a champion.
_DOUBTS = {
    NOISE: (MUCH_NOISE, f"its times have a noise of {{:.0%}}, more than {MUCH_NOISE:.0%}"),
    TAKEN: (
        MUCH_TAKEN, f"other processes used {{:.0%}} of the cores during the finals, more than {MUCH_TAKEN:.0%}",
    ),
    SEARCH: (APART, "the library's times before the search and in the finals are {:.3g} x apart"),
    EARLIER: (APART, "the library took {:.3g} x its best time of earlier runs"),
    CORE_TYPE: (
        APART, "the library's times as it runs by itself and with another core type are {:.3g} x apart",
    ),
}  # fmt: skip
#: The same of a machine.
_COMPLAINTS = {
    STEAL: (MUCH_STEAL, "the hypervisor gives {:.0%} of the cores' time to others"),
    QUOTA: (MUCH_QUOTA, "a CPU quota holds this process back {:.0%} of the time"),
    HEAT: (0.0, "cores are throttled for heat"),
    OTHERS_GPU: (BUSY_GPU, "the GPU is {:.0%} busy without this study"),
}


def doubts(circumstances: Mapping[str, float]) -> tuple[str, ...]:
    """Reasons why a champion with these circumstances is provisional; empty if it is not."""
    return _beyond(circumstances, _DOUBTS)


def _beyond(circumstances: Mapping[str, float], limits: Mapping[str, tuple[float, str]]) -> tuple[str, ...]:
    values = {name: circumstances.get(name, 0.0) for name in limits}
    return tuple(text.format(values[name]) for name, (limit, text) in limits.items() if values[name] > limit)


def complaints(circumstances: Mapping[str, float], cores: int = 0) -> tuple[str, ...]:
    """Reasons to doubt times measured under these circumstances; empty on a quiet machine.

    Args:
        circumstances: Of a record, or of a load.
        cores: Cores of a CPU; 0 for a GPU.
    """
    reasons = []
    busy = circumstances.get(OTHERS_CORES, 0.0)
    if busy > max(BUSY_CORES, BUSY_SHARE_OF_CORES * cores):
        reasons.append(f"other processes use {busy:.2g} of {cores or 'its'} cores")
    count = int(circumstances.get(OTHERS_PROCESSES, 0))
    if count:
        reasons.append(f"{count} other process{'es' if count > 1 else ''} on the GPU")
    reasons += _beyond(circumstances, _COMPLAINTS)
    bits = int(circumstances.get("throttle_reasons", 0))
    slowed = sorted({text for bit, text in SLOWED.items() if bits & bit})
    return (*reasons, f"clocks are throttled: {', '.join(slowed)}") if slowed else tuple(reasons)
