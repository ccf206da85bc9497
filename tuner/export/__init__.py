"""Takes a tuned kernel away: as source, binary, Python module or record, none of which needs this package."""

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tuner.declare.catalogue import Catalogue
from tuner.declare.folders import filled, write_whole
from tuner.declare.kernel import Kernel, Rendered, render
from tuner.declare.language import source_language
from tuner.declare.problem import Problem
from tuner.declare.space import Config
from tuner.devices.detect import language_of
from tuner.errors import InputError, NothingFound, UnknownName
from tuner.export.interface import Interface, interface_of, launch_json
from tuner.export.texts import cuda_source, python_module
from tuner.lookup import Answer, tune_command
from tuner.results import codec
from tuner.results.record import Champion
from tuner.version import __version__


@dataclass(frozen=True)
class Exported:
    """All that a format may draw on."""

    champion: Champion
    kernel: Kernel
    problem: Problem
    rendered: Rendered
    face: Interface

    @property
    def fallback(self) -> str:
        """Kernel and config that compute inputs which the kernel does not take; empty where it takes all."""
        return self.kernel.falls_back_to(self.champion.record.config)

    @property
    def stem(self) -> str:
        """Name of the files, an identifier so that Python can import them."""
        sizes = "x".join(str(size) for _, size in self.problem.shape)
        problem, where = self.problem, self.kernel.target
        if source_language(where).has_launch:
            where = self.champion.record.device.architecture
        how = problem.dtype, problem.layout, problem.epilogue
        parts = (problem.operation.name, self.kernel.name, sizes, *how, where)
        return re.sub(r"\W", "_", "_".join(part for part in parts if part))


def export(
    result: Answer | Champion, kernel: Kernel, problem: Problem, format: str, folder: str | Path
) -> list[Path]:
    """Writes a tuned kernel into a folder, which is made where it does not exist.

    Args:
        result: What a lookup answered, or a champion.
        kernel: The champion's kernel, as declared now.
        problem: The champion's problem.
        format: One of `FORMATS`.
        folder: Where to write.

    Returns:
        The files, the main one first.

    Raises:
        UnknownName: No such format.
        InputError: As `contents`, or the folder cannot be written.
    """
    made = contents(result, kernel, problem, format)
    return [write_file(Path(folder), name, data) for name, data in made.items()]


def contents(result: Answer | Champion, kernel: Kernel, problem: Problem, format: str) -> dict[str, bytes]:
    """The files of an export: name and content, the main one first.

    Args:
        result: What a lookup answered, or a champion.
        kernel: The champion's kernel, as declared now.
        problem: The champion's problem.
        format: One of `FORMATS`.

    Raises:
        UnknownName: No such format.
        InputError: The format does not suit the kernel, or the kernel's parameters are no longer those of the
            champion.
    """
    if format not in FORMATS:
        raise UnknownName("export format", format, FORMATS)
    champion = result.champion if isinstance(result, Answer) else result
    if champion is None:
        raise InputError(
            f"an export is of a config that was measured, and nothing is known of {problem} or one like it; "
            "run `tuner tune` first"
        )
    record = champion.record
    names = [parameter.name for parameter in kernel.parameters]
    if record.kernel != kernel.name or sorted(names) != sorted(record.config):
        raise InputError(
            f"the champion's config must be one of the kernel as it is now: kernel {kernel.name!r} has "
            f"parameters {', '.join(names) or 'none'}, got {record.kernel!r} with "
            f"{', '.join(record.config) or 'none'}; tune again"
        )
    config = Config({name: record.config[name] for name in names})
    kernel = kernel.as_recorded(record.fallback, problem, record.device)
    for constraint in kernel.constraints:
        if not constraint.for_speed and not constraint.rule(problem, record.device, config):
            raise InputError(
                f"{constraint.sentence}: the champion's config breaks this rule of kernel {kernel.name!r} as "
                f"it is now, for {problem}; tune again"
            )
    face = interface_of(kernel, problem, config, record.device)
    exported = Exported(champion, kernel, problem, render(kernel, problem, config), face)
    made = FORMATS[format](exported)
    return {name: data.encode() if isinstance(data, str) else data for name, data in made.items()}


def exported_files(answer: Answer, catalogue: Catalogue, problem: Problem, format: str) -> dict[str, bytes]:
    """The files of an export by name, the main one first.

    Args:
        answer: What a lookup answered.
        catalogue: Kernels as they are now.
        problem: What was asked.
        format: One of `FORMATS`.

    Raises:
        NothingFound: The answer was not measured for this problem.
        UnknownName: There is no such format, or the kernel is no longer declared.
        InputError: The format does not suit the kernel.
        EnvironmentTrouble: A binary needs a compiler that is not installed.
    """
    assert answer.question is not None, "an answer has its question"
    if answer.match != "exact":
        command = tune_command(answer.question, str(problem.operation.origin or ""))
        raise NothingFound(
            f"an export is of a config that was measured for its problem, {answer.question} is not tuned; the "
            f"{answer.match} answer would be {answer.kernel}. Run `{command}`"
        )
    kernel = catalogue.of(problem.operation.name, answer.question.device.kind, (answer.kernel,))[0]
    return contents(answer, kernel, problem, format)


def write_file(folder: Path, name: str, data: bytes) -> Path:
    """Writes a whole file or none, into a folder that is made where it does not exist.

    Raises:
        InputError: The folder cannot be written.
    """
    try:
        write_whole(folder / name, data)
    except OSError as error:
        raise InputError(
            f"an export needs a folder that can be written, got {folder} ({error}); choose another"
        ) from error
    return folder / name


def _source(exported: Exported) -> dict[str, str | bytes]:
    kernel, rendered, linked = exported.kernel, exported.rendered, ""
    language = language_of(kernel.target)
    if kernel.is_library:
        rendered, linked = language.exported(kernel, exported.problem, exported.champion.record.config)
    elif language.suffix.endswith(".py"):
        return _python(exported)
    name = f"{exported.stem}.cu"
    architecture = exported.champion.record.device.architecture or "native"
    own = kernel.scope.architecture
    # -arch= alone has nvcc compile for what every chip of the architecture has, too.
    chosen = f"-gencode arch={own.replace('sm', 'compute')},code={own}" if own else f"-arch={architecture}"
    command = f"nvcc -O3 -std=c++17 {chosen} -DTILE_TUNER_MAIN {name} -o check{linked} && ./check"
    options = kernel.source.options
    return {name: cuda_source(header(exported), command, options, rendered, exported.face)}


def _python(exported: Exported) -> dict[str, str | bytes]:
    kernel, rendered, lines = exported.kernel, exported.rendered, header(exported)
    if text := language_of(kernel.target).module(rendered, exported.problem):
        return {f"{exported.stem}.py": "\n".join([*(f"# {line}".rstrip() for line in lines), "", text])}
    return {f"{exported.stem}.py": python_module(lines, kernel, rendered, exported.face)}


def _binary(exported: Exported) -> dict[str, str | bytes]:
    if not source_language(exported.kernel.target).has_launch:
        raise InputError(
            f"a binary is of a cuda kernel, got the {exported.kernel.target} kernel {exported.kernel.name!r}; "
            "choose source, python or json"
        )
    from tuner.devices.cuda.nvrtc import compiled_code

    device, language = exported.champion.record.device, language_of(exported.kernel.target)
    code = compiled_code(exported.rendered, device.architecture, exported.problem)
    rendered, cubin = language.loadable(exported.rendered, code)
    assert rendered.launch is not None, "a CUDA kernel has a launch"
    face = replace(exported.face, launch=rendered.launch) if language.by_sizes else exported.face
    about = {
        "format": "tile-tuner binary",
        "cubin": f"{exported.stem}.cubin",
        **launch_json(face, rendered.launch, device.architecture),
    }
    text = json.dumps({**about, **_record(exported)}, indent=2) + "\n"
    return {f"{exported.stem}.cubin": cubin, f"{exported.stem}.cubin.json": text}


def _json(exported: Exported) -> dict[str, str | bytes]:
    about = {"format": "tile-tuner record", **_record(exported)}
    return {f"{exported.stem}.json": json.dumps(about, indent=2) + "\n"}


def _record(exported: Exported) -> dict[str, Any]:
    """The record with all that it was measured with, and the meaning and unit of every figure."""
    champion, record = exported.champion, exported.champion.record
    baseline = champion.baseline
    return {
        "version": 1, "exported_by": f"tile-tuner {__version__}", "about": _ABOUT, **exported.problem.to_json(),
        "target": exported.kernel.target, "kernel": record.kernel, "idea": exported.kernel.idea,
        "config": dict(record.config), "fallback": exported.fallback, "regime": record.regime,
        "time_s": record.measurement.time_s, "noise": record.measurement.noise, "tflops": record.tflops,
        "gbps": record.gbps, "work": dict(record.work), "speedup": champion.speedup or None,
        "trials": dict(champion.trials), "measurement": codec.to_json(record.measurement),
        "baseline": None if baseline is None else {
            "name": baseline.kernel, "versions": dict(baseline.versions), "tflops": baseline.tflops,
            "measurement": codec.to_json(baseline.measurement),
        },
        "device": record.device.to_json(), "versions": dict(record.versions),
        "source_hash": {"measured": record.source_hash, "exported": exported.kernel.source_hash},
        "record_id": record.id, "measured_at": record.measured_at,
    }  # fmt: skip


_ABOUT = {
    "time_s": "median of the samples, seconds of one run",
    "noise": "median absolute deviation over the median, scaled to a normal's standard deviation",
    "tflops": "work.flops / time_s / 1e12",
    "gbps": "work.bytes / time_s / 1e9, counting every input read once and every output written once",
    "speedup": "median of time(baseline) / time(kernel), measured alternately; null without a baseline",
    "regime": "cold: the last-level cache is flushed before each run; hot: it is not",
    "measurement.samples_s": "each run's time in seconds, in the order taken",
    "measurement.error": "against a float64 reference: max_rel over its rms, rms_rel, and over what is allowed",
    "measurement.bits": "hash of the outputs at fixed inputs: results of equal ones have equal bits",
    "device": "as the driver or the operating system describes it; sizes in bytes",
    "source_hash": "of the kernel's source without comments and layout",
}

#: Format -> what makes its files: name -> content.
FORMATS: Mapping[str, Callable[[Exported], dict[str, str | bytes]]] = {
    "source": _source, "binary": _binary, "python": _python, "json": _json,
}  # fmt: skip


def header(exported: Exported) -> list[str]:
    """What every exported text begins with: problem, device, figures, versions, date, record."""
    record = exported.champion.record
    text = filled(
        Path(__file__).with_name("header.jinja"), {}, champion=exported.champion, problem=exported.problem,
        kernel=exported.kernel, fallback=exported.fallback, parameters=str(Config(record.config)),
        versions=", ".join(f"{name} {version}" for name, version in sorted(record.versions.items())),
        version=__version__,
    )  # fmt: skip
    return text.splitlines()
