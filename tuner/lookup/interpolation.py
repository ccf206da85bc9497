"""What values at known places say of another place: between two of them it is interpolated."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tuner.lookup.features import Floats
from tuner.lookup.legality import Flags


@dataclass(frozen=True)
class Kriging:
    """How places lie, to one another and to the one that is asked for.

    The variance of the difference between two places grows with how far they lie apart; far apart they say
    nothing of one another. From this follow the best linear weights (kriging): many far places that are like
    each other do not outvote a near one, and between two places what is known of both is interpolated.

    Attributes:
        among: Shape (places, places): variance of the difference between two of them.
        here: Shape (places,): the same to the place asked for.
        noise: Variance of one value.
    """

    among: Floats
    here: Floats
    noise: float

    def at(self, values: Floats, known: Flags, prior: Floats | float, variance: float) -> tuple[Floats, Floats]:
        """Interpolates rows of values.

        Args:
            values: Shape (rows, places).
            known: Which of them are known.
            prior: What a row is expected to be where nothing is known near; one a row, or one for all.
            variance: Of values about it.

        Returns:
            Expected value and variance, both per row.
        """
        # As bytes: told apart by rows, every place would become a field of a structure first.
        packed = np.packbits(known, axis=1)
        _, first, which = np.unique(packed.view(f"S{packed.shape[1]}"), return_index=True, return_inverse=True)
        rows, which = known[first], which.reshape(-1)
        # A system for each row, of its known places alone: the first `most` of an order that has them in front.
        most = max(int(rows.sum(axis=1).max()), 1)
        order = np.argsort(~rows, axis=1, kind="stable")[:, :most]
        told = np.take_along_axis(rows, order, axis=1)
        shared = variance * np.exp(-self.among / (2 * variance))
        toward = np.where(told, (variance * np.exp(-self.here / (2 * variance)))[order], 0.0)
        system = np.where(
            told[:, :, None] & told[:, None, :], shared[order[:, :, None], order[:, None, :]], 0.0
        )
        diagonal = np.arange(most)
        system[:, diagonal, diagonal] = np.where(told, variance + self.noise, 1.0)
        solved = np.linalg.solve(system, toward[:, :, None])[:, :, 0]
        left = np.maximum(variance - np.einsum("rp,rp->r", solved, toward), 0.0)
        weights = np.zeros(rows.shape)
        np.put_along_axis(weights, order, solved, axis=1)
        about = np.broadcast_to(np.asarray(prior, float), len(values))
        moved = np.where(known, values - about[:, None], 0.0)
        return about + np.einsum("rp,rp->r", weights[which], moved), left[which]
