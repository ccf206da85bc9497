"""Products whose rows have the same bits for any number of them."""

from __future__ import annotations

import json

import numpy as np
import pytest
from click.testing import CliRunner, Result
from fixtures.operands import normal

import tuner
from tuner.cli.main import command_line
from tuner.errors import InputError

pytestmark = pytest.mark.usefixtures("own_records")


def ask(words: str) -> Result:
    """What a command printed."""
    return CliRunner().invoke(command_line, words.split())


def test_a_row_of_a_product_does_not_depend_on_how_many_there_are() -> None:
    options = "--device cpu --kernel naive --trials 2 --seconds 20 --invariant m --quiet"
    tuned = ask(f"tune gemm 4 24 40 {options}")
    assert tuned.exit_code == 0, tuned.output
    assert "4 x 24 x 40" in tuned.stdout
    told = json.loads(ask("best gemm 3 24 40 --device cpu --invariant m --json").stdout)
    assert (told["match"], told["record"]["shape"]["m"], told["use"]) == ("invariant", 4, "kernel")
    a, b = normal(4, 40), normal(40, 24)
    whole = tuner.matmul(a, b, invariant="m")
    np.testing.assert_allclose(whole, a @ b, rtol=1e-3, atol=1e-3)
    for rows in (slice(0, 1), slice(1, 4), slice(2, 4), slice(3, 4)):
        assert (tuner.matmul(a[rows], b, invariant="m") == whole[rows]).all()
    with pytest.raises(
        InputError, match="invariant='m' is for products of two matrices by kernels, but it is gemv"
    ):
        tuner.matmul(a[0], b, invariant="m")
    with pytest.raises(InputError, match="invariant is for plain products of arrays"):
        tuner.matmul(a, b, invariant="m", alpha=2.0)
