"""Trains a small FP32 transformer with and without emulated products, and prints how long a step takes.

    python examples/train_transformer.py --width 1024 --tokens 8192 --steps 200
    python examples/train_transformer.py --width 1024 --infer 1 8 64 512

It needs PyTorch and an NVIDIA GPU. The first step with emulated products measures each product once;
`studies.db` keeps what was found, so a second run starts at once. Losses beside plain FP32's say how exact each
way is; a run in float64 (`--double`) says whose are right. `--infer` times forward passes of so many rows in
bfloat16 instead: eager, by `torch.compile`, and by its mode "reduce-overhead" (CUDA graphs), all ways in turn.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional

import tuner
import tuner.torch

HEAD = 64
#: Ways to run a forward pass, each with a mode of `torch.compile`; None for none.
MODES = {"eager": None, "compiled": "default", "graphs": "reduce-overhead"}


class Block(nn.Module):
    """Attention and two linear layers, each behind a norm."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList([nn.LayerNorm(width), nn.LayerNorm(width)])
        self.heads, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.wide, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Shape (batch, tokens, width), as its input."""
        batch, tokens, width = x.shape
        heads = self.heads(self.norms[0](x)).view(batch, tokens, 3, width // HEAD, HEAD)
        q, k, v = heads.permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, tokens, width))
        return x + self.narrow(functional.gelu(self.wide(self.norms[1](x))))


def trained(way: str, options: argparse.Namespace) -> dict[str, object]:
    """Trains anew and returns milliseconds of a step, in the median after the first tenth, and all losses."""
    torch.backends.cuda.matmul.allow_tf32 = way == "tf32"
    dtype = torch.float64 if way == "float64" else torch.float32
    torch.manual_seed(0)
    net = nn.Sequential(*(Block(options.width) for _ in range(4))).cuda().to(dtype)
    generator = torch.Generator(device="cuda").manual_seed(1)
    shape = (options.tokens // 1024, 1024, options.width)
    x = torch.randn(shape, device="cuda", generator=generator).to(dtype)
    y = torch.roll(x, 1, 1) * 0.5
    optimizer = torch.optim.AdamW(net.parameters(), 1e-4, fused=True)
    if way == "emulated":
        net = tuner.torch.use("emulated")(net)
        with tuner.on_miss("measure", seconds=options.seconds, wait=True):
            functional.mse_loss(net(x), y).backward()
    step = torch.compile(net) if options.compile else net
    times_s, losses = [], []
    for _ in range(options.steps):
        torch.cuda.synchronize()
        begun_s = time.perf_counter()
        optimizer.zero_grad()
        loss = functional.mse_loss(step(x), y)
        loss.backward()
        optimizer.step()
        torch.cuda.synchronize()
        times_s.append(time.perf_counter() - begun_s)
        losses.append(loss.item())
    return {"ms": 1e3 * statistics.median(times_s[len(times_s) // 10 :]), "losses": losses}


def wait(device: str) -> None:
    """Until the device has done what is queued."""
    if device == "cuda":
        torch.cuda.synchronize()


def made(net: nn.Module, mode: str | None, tuned: bool) -> Callable[[torch.Tensor], torch.Tensor]:
    """A way to run a network."""

    def forward(x: torch.Tensor) -> torch.Tensor:
        return net(x)

    run = torch.compile(forward, mode=mode, dynamic=False) if mode else forward
    return tuner.torch.use()(run) if tuned else run


def medians_us(ways: dict[tuple[str, bool], Callable[..., object]], x: torch.Tensor, rounds: int) -> dict:
    """Microseconds of a pass for each way: ten in a row, all ways in turn, every second round backwards."""
    times: dict[tuple[str, bool], list[float]] = {way: [] for way in ways}
    for number in range(-3, rounds):
        for way in list(ways)[:: 1 if number % 2 else -1]:
            wait(x.device.type)
            begun_s = time.perf_counter()
            for _ in range(10):
                ways[way](x)
            wait(x.device.type)
            if number >= 0:
                times[way].append((time.perf_counter() - begun_s) * 1e5)
    return {way: statistics.median(of) for way, of in times.items()}


def gain(of: tuner.torch.Product, device: str) -> float:
    """How many times as fast as the library a product was measured to be; 1 where the library runs."""
    told = tuner.explain(
        "gemm", m=of.m, n=of.n, k=of.k, dtype=of.dtype, layout=of.layout, epilogue=of.epilogue, device=device
    )
    return told.speedup if told.use == "kernel" else 1.0


def inferred(options: argparse.Namespace) -> None:
    """Prints how long a forward pass in bfloat16 takes, and compiling it, with and without tuned kernels."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(0)
    net = nn.Sequential(*(Block(options.width) for _ in range(4))).to(device, torch.bfloat16).eval()
    torch._inductor.config.force_disable_caches = True
    modes = MODES if device == "cuda" else {name: MODES[name] for name in ("eager", "compiled")}
    print("| rows | way | PyTorch us | tuned us | x |\n|--:|---|--:|--:|--:|")
    first_s: dict[tuple[str, bool], list[float]] = {}
    gains: list[float] = []
    with torch.no_grad():
        for number, rows in enumerate((options.infer[0], *options.infer)):
            x = torch.randn(1, rows, options.width, device=device, dtype=torch.bfloat16)
            products = tuner.torch.prepare(net, x, seconds=options.seconds)
            torch._dynamo.reset()
            ways = {(name, tuned): made(net, modes[name], tuned) for name in modes for tuned in (False, True)}
            if number == 0:  # it loads what compiles
                ways["compiled", False](x)
                continue
            for way, run in ways.items():
                begun_s = time.perf_counter()
                run(x)
                wait(device)
                first_s.setdefault(way, []).append(time.perf_counter() - begun_s)
            gains += [gain(of, "cuda:0" if device == "cuda" else device) for of in products]
            us = medians_us(ways, x, 20)
            for name in modes:
                plain, tuned = us[name, False], us[name, True]
                print(f"| {rows} | {name} | {plain:.0f} | {tuned:.0f} | {plain / tuned:.3f} |", flush=True)
            mean = statistics.geometric_mean(gains)
            print(f"geometric mean of {len(gains)} products: {mean:.3f} x the library")
            plain, tuned = (statistics.median(first_s["compiled", tuned]) for tuned in (False, True))
            print(f"compiling takes {plain:.2f} s, with tuned kernels {tuned:.2f} s: {tuned / plain - 1:+.1%}")


def main() -> None:
    """Runs each way and prints them side by side."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--width", type=int, default=1024)
    parser.add_argument("--tokens", type=int, default=8192, help="a multiple of 1024")
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument(
        "--seconds", type=float, default=1.0, help="of timing for each product, at its first use"
    )
    parser.add_argument("--compile", action="store_true", help="by torch.compile")
    parser.add_argument("--double", action="store_true", help="in float64, too, to compare losses with")
    parser.add_argument("--json", default="", help="file for all figures")
    parser.add_argument("--infer", type=int, nargs="+", help="time forward passes in bfloat16, of so many rows")
    options = parser.parse_args()
    if options.infer:
        inferred(options)
        return
    ways = ["fp32", "emulated", "tf32", *(["float64"] if options.double else [])]
    found = {way: trained(way, options) for way in ways}
    right = found[ways[-1] if options.double else "fp32"]["losses"]
    for way, result in found.items():
        off = max(abs(one - other) / other for one, other in zip(result["losses"], right, strict=True))
        print(
            f"{way:9} {result['ms']:8.2f} ms a step, {found['fp32']['ms'] / result['ms']:5.2f} x FP32, "
            f"loss {result['losses'][-1]:.7f}, at most {off:.1e} off"
        )
    print(f"{tuner.fallbacks()} products were computed by their plain kernel")
    if options.json:
        told = {"options": vars(options), "torch": torch.__version__, **found}
        Path(options.json).write_text(json.dumps(told), encoding="utf-8")


if __name__ == "__main__":
    main()
