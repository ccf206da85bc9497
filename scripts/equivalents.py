"""Compares kernels with their sources at older revisions; scripts/equivalents says how to call it."""

from __future__ import annotations

import argparse
import functools
import hashlib
import io
import json
import os
import struct
import subprocess
import sys
import tarfile
import tempfile
import tomllib
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from tuner.declare.kernel import measured_text
from tuner.declare.problem import IEEE
from tuner.devices.cuda.language import cpp_tokens

ROOT = Path(__file__).resolve().parent.parent
TABLE = ROOT / "kernels" / "equivalent_sources.toml"
HEAD = """# Older source hashes of each kernel and the hash that took their place, by scripts/equivalents.
# Each pair is proven for published and drawn configs: the same launch, and the same tokens, as the preprocessor
# leaves them, or the same machine code. One pair is of a mended fault: emulated's 89b86ff135deba7d read past
# edges. Nine configs took 0.987 to 1.003 of its time, 0.996 in the mean, in turn on an H200 (2026-11-28).
# Two are of cuBLASLt's kernels: the same functions of it have the same arguments, from native code.
"""
#: Architectures that drawn configs of CUDA kernels are compiled for: that of the published results.
ARCHITECTURE = "sm_90a"
#: Kinds of an ELF file's sections, and bytes of an entry of a symbol table (System V ABI).
SHT_SYMTAB, SHT_STRTAB, SHT_NOBITS, SYMBOL_BYTES = 2, 3, 8, 24
#: Shapes at which configs are drawn, per operation: ordinary, odd, thin and deep.
SHAPES = {
    "gemm": (
        (512, 512, 512), (1024, 1024, 1024), (777, 1000, 1300),
        (16, 4096, 4096), (4096, 4, 4096), (64, 64, 65536),
    ),
    "gemv": ((4096, 4096), (1000, 777), (64, 65536)),
    "transpose": ((4096, 4096), (1000, 777)),
    "bmm": ((256, 128, 64, 128), (1000, 32, 32, 32), (37, 77, 99, 130)), "grouped": ((777, 512, 1000, 9),),
}  # fmt: skip

#: Cases that are compiled of a kernel in which only names have changed.
RENAMED_COMPILED = 8

#: What runs inside a checkout, of whichever revision: kernels with their hashes, and what configs render to.
DESCRIBE = r"""
import json, sys
from dataclasses import asdict
from tuner.declare.catalogue import builtin
from tuner.declare.kernel import render
from tuner.declare.space import Config

def plain(value):
    return value.item() if hasattr(value, "item") else list(value)

catalogue, cases = builtin(), json.load(sys.stdin)
for kernel in catalogue.kernels:
    key = f"{kernel.operation} {kernel.target} {kernel.name}"
    operation = catalogue.operation(kernel.operation)
    rendered = []
    for shape, dtype, layout, config, *precision in cases.get(key, ()):
        if {each.name for each in kernel.parameters} != set(config):
            continue
        try:
            problem = operation.problem(shape, dtype, layout, *precision)
            if any(not each.rule(problem, None, None) for each in kernel.constraints
                   if each.sentence.startswith("elements are ")):
                continue
            found = render(kernel, problem, Config(config))
        except Exception:
            continue
        launch = None if found.launch is None else asdict(found.launch)
        rendered.append([[shape, dtype, layout, config], found.text, found.entry, list(found.options), launch])
    told = {"kernel": key, "hash": kernel.source_hash, "rendered": rendered}
    print(json.dumps(told, default=plain))
"""


def described(checkout: Path, cases: dict[str, list[Any]]) -> dict[str, dict[str, Any]]:
    """Kernel -> its hash and what the cases render to in a checkout; empty if it cannot be read there."""
    environment = {**os.environ, "PYTHONPATH": str(checkout)}
    done = subprocess.run(
        [sys.executable, "-c", DESCRIBE], input=json.dumps(cases), env=environment, cwd=checkout, text=True,
        capture_output=True, check=False,
    )  # fmt: skip
    if done.returncode:
        print(f"  cannot be described: {done.stderr.strip().splitlines()[-1:]}")
        return {}
    return {told["kernel"]: told for told in map(json.loads, done.stdout.splitlines())}


def published_cases() -> Iterator[tuple[str, list[Any]]]:
    """(kernel, case) of every published champion and runner-up."""
    for path in sorted((ROOT / "configs" / "tuned").glob("*/*.json")):
        data = json.loads(path.read_text(encoding="utf-8"))
        targets = {key: device["kind"] for key, device in data["devices"].items()}
        for entry in data["entries"]:
            problem = entry["problem"]
            for each in (entry, *entry["runners_up"]):
                case = [problem["shape"], problem["dtype"], problem["layout"], each["config"]]
                case += [problem["precision"]] if problem.get("precision", IEEE) != IEEE else []
                yield f"{data['operation']} {targets[entry['device']]} {each['kernel']}", case


def drawn_cases(count: int) -> Iterator[tuple[str, list[Any]]]:
    """(kernel, case) of legal configs drawn at `SHAPES` in all layouts, for devices with published results."""
    from tuner.declare.catalogue import builtin
    from tuner.declare.hardware import DeviceInfo
    from tuner.declare.space import Space

    devices: dict[str, DeviceInfo] = {}
    for path in sorted((ROOT / "configs" / "tuned").glob("*/*.json")):
        for told in json.loads(path.read_text(encoding="utf-8"))["devices"].values():
            devices.setdefault(told["kind"], DeviceInfo.from_json(told))
    catalogue, rng = builtin(), np.random.default_rng(0)
    for kernel in catalogue.kernels:
        operation = catalogue.operation(kernel.operation)
        key = f"{kernel.operation} {kernel.target} {kernel.name}"
        # A revision before `Scope` has them in the kernel itself.
        precisions = getattr(kernel, "scope", kernel).precisions
        shapes = SHAPES.get(kernel.operation, ((4096,) * len(operation.dims),))
        precision = [] if IEEE in precisions else [precisions[0]]
        dtypes = operation.emulated if precision else operation.dtypes
        for at in range(count):
            sizes = shapes[at % len(shapes)]
            dtype = dtypes[(at // 4) % len(dtypes)]
            layout = (layouts := operation.layouts_of.get(dtype, operation.layouts))[at % len(layouts)]
            dims = dict(zip(operation.dims, sizes, strict=True))
            problem = operation.problem(dims, dtype, layout, *precision)
            space = Space.build(kernel.parameters, kernel.constraints, problem, devices[kernel.kind])
            if len(space):
                yield key, [problem.dims, dtype, layout, dict(space[int(rng.integers(len(space)))]), *precision]


@functools.cache
def preprocessed(text: str) -> str:
    """A CUDA source behind the preprocessor, as for `ARCHITECTURE`; empty where there is no preprocessor."""
    capability = "".join(each for each in ARCHITECTURE if each.isdigit()) + "0"
    try:
        done = subprocess.run(
            ["cpp", "-P", "-nostdinc", "-undef", f"-D__CUDA_ARCH__={capability}", "-x", "c++", "-"], input=text,
            capture_output=True, text=True, check=False,
        )  # fmt: skip
    except FileNotFoundError:
        return ""
    return "" if done.returncode else cpp_tokens(done.stdout)


def same_tokens(target: str, one: str, other: str) -> bool:
    """Whether two sources have the same tokens, for CUDA as the preprocessor leaves them."""
    if measured_text(one, target) == measured_text(other, target):
        return True
    return target == "cuda" and preprocessed(one) == preprocessed(other) != ""


def without_defaults(launch: Any) -> Any:
    """A launch without empty fields: later versions have more of them."""
    if isinstance(launch, dict):
        return {
            name: without_defaults(value) for name, value in launch.items() if value not in (None, [], 0, ())
        }
    return [without_defaults(each) for each in launch] if isinstance(launch, list) else launch


def without_names(cubin: bytes) -> bytes:
    """A cubin without the names of its symbols: code, constants, relocations and symbols' places stay.

    Args:
        cubin: An ELF file of 64 bits (System V ABI). Names of structs are in it if their members have symbols.
    """
    start, (size, count, names_at) = *struct.unpack_from("<Q", cubin, 40), struct.unpack_from("<HHH", cubin, 58)
    headers = [struct.unpack_from("<IIQQQQ", cubin, start + at * size) for at in range(count)]
    kept = []
    for number, (name, kind, flags, address, offset, length) in enumerate(headers):
        content = bytearray(b"" if kind == SHT_NOBITS else cubin[offset : offset + length])
        if kind == SHT_SYMTAB:
            for at in range(0, length, SYMBOL_BYTES):
                content[at : at + 4] = bytes(4)
        if kind != SHT_STRTAB or number == names_at:
            kept.append(struct.pack("<IIQQQ", name, kind, flags, address, length) + content)
    return b"".join(kept)


@functools.cache
def cubin_hash(text: str, options: tuple[str, ...]) -> str:
    """Hash of what a CUDA source compiles to, without symbols' names; equal texts are compiled once."""
    from tuner.devices.cuda.nvrtc import compile_cubin

    return hashlib.sha256(without_names(compile_cubin(text, ARCHITECTURE, options)[0])).hexdigest()


def cpu_codes(text: str, entry: str, case: list[Any]) -> dict[str, str]:
    """Function -> hash of its machine code, for a CPU kernel; empty if it does not compile."""
    done = subprocess.run(
        [sys.executable, str(ROOT / "scripts" / "numba_code.py")], check=False, text=True, capture_output=True,
        input=json.dumps([text, entry, case]), cwd=ROOT,
    )  # fmt: skip
    return json.loads(done.stdout) if done.returncode == 0 else {}


def same_code(target: str, then: list[Any], now: list[Any]) -> bool:
    """Whether two rendered cases have the same machine code; on a CPU each function of before."""
    (case, old_text, entry, options, _), new_text = then, now[1]
    if target == "cuda":
        return cubin_hash(old_text, tuple(options)) == cubin_hash(new_text, tuple(options))
    old, new = cpu_codes(old_text, entry, case), cpu_codes(new_text, entry, case)
    return bool(old) and old.items() <= new.items()


def is_renamed(one: str, other: str) -> bool:
    """Whether two CUDA sources differ in names alone.

    Their tokens must agree but for identifiers, those that differ must do so one to one everywhere, and no such
    name may stand in both sources.
    """
    pairs = list(zip(tokens := cpp_tokens(one).split(), others := cpp_tokens(other).split(), strict=False))
    changed = {(ours, theirs) for ours, theirs in pairs if ours != theirs}
    old, new = {ours for ours, _ in changed}, {theirs for _, theirs in changed}
    return (
        len(tokens) == len(others)
        and len(old) == len(new) == len(changed)
        and all(each.isidentifier() for each in old | new)
        and not old & set(others)
        and not new & set(tokens)
    )


def proven(target: str, then: dict[str, Any], now: dict[str, Any]) -> str:
    """Why a pair is not equivalent; empty if every case that both know has the same code, and there is one.

    Sources with the same tokens have the same code. Others are compiled: all of them, but only
    `RENAMED_COMPILED` of those in which names alone differ, since one rename serves all configs.
    """
    by_case = {json.dumps(each[0], sort_keys=True): each for each in now["rendered"]}
    named = [(each, json.dumps(each[0], sort_keys=True)) for each in then["rendered"]]
    pairs = [(each, by_case[key]) for each, key in named if key in by_case]
    if not pairs:
        return "no config that both know"
    different, renamed = [], []
    for old, new in pairs:
        if without_defaults(old[4]) != without_defaults(new[4]) or old[2:4] != new[2:4]:
            return f"launched otherwise at {old[0]}"
        if not same_tokens(target, old[1], new[1]):
            only_names = target == "cuda" and is_renamed(old[1], new[1])
            (renamed if only_names else different).append((old, new))
    spaced = [
        renamed[at * len(renamed) // RENAMED_COMPILED] for at in range(min(RENAMED_COMPILED, len(renamed)))
    ]
    for old, new in (*different, *spaced):
        if not same_code(target, old, new):
            return f"other machine code at {old[0]}"
    return ""


def checkout_of(revision: str, folder: Path) -> Path:
    """The sources of a revision, written into a folder."""
    packed = subprocess.run(
        ["git", "archive", revision, "tuner", "kernels", "configs"], cwd=ROOT, check=True, capture_output=True
    ).stdout
    with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
        archive.extractall(folder, filter="data")
    return folder


def write_table(table: dict[str, dict[str, str]]) -> None:
    """Writes the table, kernels and hashes in order."""
    lines = [HEAD]
    for kernel in sorted(table):
        lines.append(f'["{kernel}"]')
        lines += [f'{old} = "{new}"' for old, new in sorted(table[kernel].items())]
        lines.append("")
    TABLE.write_text("\n".join(lines), encoding="utf-8")


def main() -> None:
    """Compares, prints what was found, and writes the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("revisions", nargs="*")
    parser.add_argument("--all", action="store_true", help="every revision that changed a kernel")
    parser.add_argument("--configs", type=int, default=12, help="configs drawn for each kernel")
    options = parser.parse_args()
    revisions = options.revisions
    if options.all:
        listed = subprocess.run(
            ["git", "log", "--format=%h", "--", "kernels"], cwd=ROOT, check=True, text=True, capture_output=True
        )
        revisions = listed.stdout.split()
    cases: dict[str, list[Any]] = defaultdict(list)
    for key, case in (*published_cases(), *drawn_cases(options.configs)):
        if case not in cases[key]:
            cases[key].append(case)
    now = described(ROOT, cases)
    table = {k: dict(v) for k, v in tomllib.loads(TABLE.read_text()).items()} if TABLE.is_file() else {}
    tried: set[tuple[str, str]] = set()
    for revision in revisions:
        with tempfile.TemporaryDirectory() as folder:
            print(revision, flush=True)
            for key, then in described(checkout_of(revision, Path(folder)), cases).items():
                new = now.get(key)
                old = then["hash"]
                if new is None or old == new["hash"] or old in table.get(key, {}) or (key, old) in tried:
                    continue
                tried.add((key, old))
                why = proven(key.split()[1], then, new)
                print(f"  {key}: {old}", f"differs: {why}" if why else f"-> {new['hash']}", flush=True)
                if not why:
                    table.setdefault(key, {})[old] = new["hash"]
                    write_table(table)
    write_table(table)


if __name__ == "__main__":
    main()
