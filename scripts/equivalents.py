"""Compares kernels with what they were at older revisions; scripts/equivalents tells how to call it."""

from __future__ import annotations

import argparse
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

ROOT = Path(__file__).resolve().parent.parent
TABLE = ROOT / "kernels" / "equivalent_sources.toml"
HEAD = """# Older source hashes of each kernel and the hash that took their place, by scripts/equivalents.
# Each pair is proven for published and drawn configs: the same tokens and launch, or the same machine code.
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
}  # fmt: skip

#: Hashes of what was compiled, by source and options.
_CUBINS: dict[tuple[str, ...], str] = {}

#: What runs inside a checkout, of whichever revision: kernels with their hashes, and what configs render to.
DESCRIBE = r"""
import json, sys
from dataclasses import asdict
try:
    from tuner.declare.catalogue import builtin
    from tuner.declare.kernel import render
    from tuner.declare.space import Config
except ImportError:
    from tuner.catalogue import builtin
    from tuner.kernel import render
    from tuner.space import Config

def plain(value):
    return value.item() if hasattr(value, "item") else list(value)

catalogue, cases = builtin(), json.load(sys.stdin)
for kernel in catalogue.kernels:
    key = f"{kernel.operation} {kernel.target} {kernel.name}"
    operation = catalogue.operation(kernel.operation)
    rendered = []
    for shape, dtype, layout, config in cases.get(key, ()):
        if {each.name for each in kernel.parameters} != set(config):
            continue
        try:
            problem = operation.problem(shape, dtype, layout)
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
        shapes = SHAPES.get(kernel.operation, ((4096,) * len(operation.dims),))
        for at in range(count):
            sizes = shapes[at % len(shapes)]
            layout = operation.layouts[at % len(operation.layouts)]
            dtype = operation.dtypes[(at // 4) % len(operation.dtypes)]
            problem = operation.problem(dict(zip(operation.dims, sizes, strict=True)), dtype, layout)
            space = Space.build(kernel.parameters, kernel.constraints, problem, devices[kernel.target])
            if len(space):
                yield key, [problem.dims, dtype, layout, dict(space[int(rng.integers(len(space)))])]


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


def machine_code(target: str, text: str, entry: str, options: list[str], case: list[Any]) -> str:
    """Hash of what a rendered source compiles to, a cubin or a CPU's machine code, without symbols' names."""
    if target == "cuda":
        from tuner.devices.nvrtc import compile_cubin

        # Shapes share what is compiled.
        key = (text, *options)
        if key not in _CUBINS:
            cubin = compile_cubin(text, ARCHITECTURE, tuple(options))[0]
            _CUBINS[key] = hashlib.sha256(without_names(cubin)).hexdigest()
        return _CUBINS[key]
    done = subprocess.run(
        [sys.executable, str(ROOT / "scripts" / "numba_code.py")], check=True, text=True, capture_output=True,
        input=json.dumps([text, entry, case]), cwd=ROOT,
    )  # fmt: skip
    return done.stdout.strip()


def same_code(target: str, then: list[Any], now: list[Any]) -> bool:
    """Whether two rendered cases run the same machine code in the same launch."""
    from tuner.declare.source_text import measured_text

    (case, *old, old_launch), (_, *new, new_launch) = then, now
    if without_defaults(old_launch) != without_defaults(new_launch):
        return False
    if old[1:] == new[1:] and measured_text(old[0], target) == measured_text(new[0], target):
        return True
    return machine_code(target, *old, case) == machine_code(target, *new, case)


def proven(target: str, then: dict[str, Any], now: dict[str, Any]) -> str:
    """Why a pair is not equivalent; empty if every case that both know has the same code, and there is one."""
    by_case = {json.dumps(each[0], sort_keys=True): each for each in now["rendered"]}
    pairs = [
        (each, by_case[key])
        for each in then["rendered"]
        if (key := json.dumps(each[0], sort_keys=True)) in by_case
    ]
    if not pairs:
        return "no config that both know"
    for then_case, now_case in pairs:
        if not same_code(target, then_case, now_case):
            return f"at {then_case[0]}"
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


if __name__ == "__main__":
    main()
