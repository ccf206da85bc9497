"""Completion in the shell suggests what there is."""

from __future__ import annotations

import json
from pathlib import Path

import click
import pytest
from click.shell_completion import ShellComplete
from fixtures.fake_device import TOY

from tuner.cli.main import command_line


def suggested(line: str, incomplete: str) -> dict[str, str]:
    """What is suggested after a line: name -> help."""
    shell = ShellComplete(command_line, {}, "tuner", "_TUNER_COMPLETE")
    return {each.value: each.help or each.type for each in shell.get_completions(line.split(), incomplete)}


@pytest.mark.parametrize(
    ("line", "incomplete", "some", "none"),
    [
        ("", "tu", {"tune"}, {"best"}),
        ("tune", "ge", {"gemm", "gemv"}, {"transpose"}),
        ("best", "", {"transpose"}, set()),
        ("kernels", "", {"gemm"}, set()),
        ("tune gemm --kernel", "", {"register_tiled", "packed"}, {"blocks"}),
        (f"tune {TOY} --kernel", "", {"blocks", "chunks"}, {"packed"}),
        ("tune gemm --device", "c", {"cpu", "cuda"}, set()),
        ("tune gemm --sampler", "t", {"tile", "tpe"}, {"random"}),
        ("tune gemm --layout", "", {"nn", "tt"}, set()),
        ("tune gemm --dtype", "", {"float32", "bfloat16"}, {"int8"}),
        ("tune gemm --regime", "", {"cold", "hot"}, set()),
    ],
)
def test_names_are_suggested(line: str, incomplete: str, some: set[str], none: set[str]) -> None:
    found = suggested(line, incomplete)
    assert some <= found.keys()
    assert not none & found.keys()


def test_what_cannot_be_read_suggests_nothing(tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text("raise ValueError")
    assert suggested(f"tune {tmp_path}/broken.py --kernel", "") == {}


def test_every_option_that_names_a_device_or_a_kernel_suggests_some() -> None:
    bare = []
    with click.Context(command_line) as context:
        for name in command_line.list_commands(context):
            command = command_line.get_command(context, name)
            assert command is not None
            for each in command.params:
                if each.opts[0] in ("--device", "--kernel", "--sampler") and not each._custom_shell_complete:
                    bare.append(json.dumps([name, each.opts[0]]))
    assert bare == []
