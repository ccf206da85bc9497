"""What of a CUDA source is no C++ for the host, rewritten: dynamic shared memory and inline PTX."""

import re

DYNAMIC_SHARED = re.compile(
    r"extern\s+__shared__\s+(?:__align__\(\d+\)\s*|alignas\(\d+\)\s*)?([\w\s]+?)\s*\b(\w+)\s*\[\s*\]\s*;"
)
ASM = re.compile(r"\basm(?:\s+volatile)?\s*\(")
#: What the runtime knows of PTX: the instruction without its operands -> the call that stands for it.
PTX = {
    "cp.async.ca.shared.global": "cuda_on_cpu::start_copy",
    "cp.async.cg.shared.global": "cuda_on_cpu::start_copy",
    "cp.async.commit_group": "cuda_on_cpu::commit_copies",
    "cp.async.wait_group": "cuda_on_cpu::await_copies", "cvt.rn.f16.f32": "cuda_on_cpu::to_half",
    "cvt.rn.f16x2.f32": "cuda_on_cpu::to_halves", "cvt.rn.bf16x2.f32": "cuda_on_cpu::to_bfloats",
    "cvt.f32.f16": "cuda_on_cpu::from_half", "ex2.approx.ftz.f32": "cuda_on_cpu::power_of_two",
    "rcp.approx.ftz.f32": "cuda_on_cpu::reciprocal", "tanh.approx.f32": "cuda_on_cpu::rough_tanh",
    "min.NaN.f32": "cuda_on_cpu::least_or_nan",
    "mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64": "cuda_on_cpu::multiply_8x8x4",
    "mma.sync.aligned.m16n8k16.row.col.f64.f64.f64.f64": "cuda_on_cpu::multiply_16x8x16",
    "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32": "cuda_on_cpu::multiply_halves",
    "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32": "cuda_on_cpu::multiply_bfloats",
    "ldmatrix.sync.aligned.m8n8.x4.shared.b16": "cuda_on_cpu::load_matrices",
    "ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16": "cuda_on_cpu::load_matrices_turned",
    "griddepcontrol.launch_dependents": "cuda_on_cpu::no_dependents",
    "griddepcontrol.wait": "cuda_on_cpu::no_dependents",
}  # fmt: skip


def as_host_cpp(text: str) -> str:
    """Rewrites dynamic shared arrays as pointers, and inline PTX as calls.

    Raises:
        NotImplementedError: PTX that the runtime does not know.
    """
    text = DYNAMIC_SHARED.sub(r"\1* const \2 = (\1*)cuda_on_cpu::dynamic_shared;", text)
    parts, at = [], 0
    while found := ASM.search(text, at):
        end = _closing(text, found.end())
        parts += [text[at : found.start()], _call(text[found.end() : end])]
        at = end + 1
    return "".join([*parts, text[at:]])


def _closing(text: str, at: int) -> int:
    """Position of the parenthesis that closes the one before `at`."""
    depth, quoted = 1, False
    for position in range(at, len(text)):
        character = text[position]
        if character == '"':
            quoted = not quoted
        elif not quoted:
            depth += (character == "(") - (character == ")")
            if not depth:
                return position
    raise NotImplementedError("an asm statement that does not end")


def _call(statement: str) -> str:
    """One asm statement as a call: operands in the order in which the instruction names them."""
    literals, rest = re.match(r'\s*((?:"[^"]*"\s*)+)(.*)', statement, re.DOTALL).groups()  # type: ignore[union-attr]
    instruction = "".join(re.findall('"([^"]*)"', literals))
    name, _, operands = instruction.strip().rstrip(";").partition(" ")
    if name not in PTX:
        raise NotImplementedError(f"the CPU runtime knows no PTX instruction {name!r}")
    given, at = [], 0
    while found := re.compile(r'"[=+]?[a-z]"\s*\(').search(rest, at):
        at = _closing(rest, found.end())
        given.append(rest[found.end() : at])
    arguments = [
        f"({given[int(word[1:])]})" if word.startswith("%") else word
        for word in re.findall(r"%\d+|\d+", operands)
    ]
    return f"{PTX[name]}({', '.join(arguments)})"
