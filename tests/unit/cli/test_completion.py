"""Completion in the shell suggests what there is."""

import pytest
from click.shell_completion import ShellComplete
from fixtures.fake_device import TOY

from tuner.cli.main import command_line


@pytest.mark.parametrize(("line", "incomplete", "some", "none"), [
    ("", "rec", {"records"}, {"tune"}),
    ("devices", "--j", {"--json"}, {"--help"}),
    ("tune", "ge", {"gemm", "gemv"}, {"transpose"}),
    ("tune gemm --kernel", "", {"register_tiled", "packed"}, {"blocks"}),
    (f"tune {TOY} --kernel", "", {"blocks", "chunks"}, {"packed"}),
    ("tune gone.py --kernel", "", set(), {"packed"}),
    ("tune gemm --device", "c", {"cpu", "cuda"}, set()),
    ("tune gemm --sampler", "t", {"tile", "tpe"}, {"random"}),
    ("tune gemm --layout", "", {"nn", "tt"}, set()),
    ("tune gemm --dtype", "", {"float32", "bfloat16"}, {"int8"}),
    ("tune gemm --regime", "", {"cold", "hot"}, set()),
])  # fmt: skip
def test_names_are_suggested(line: str, incomplete: str, some: set[str], none: set[str]) -> None:
    shell = ShellComplete(command_line, {}, "tuner", "_TUNER_COMPLETE")
    suggested = {item.value for item in shell.get_completions(line.split(), incomplete)}
    assert some <= suggested
    assert not none & suggested
