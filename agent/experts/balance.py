"""How even a load is, from the tokens of each expert (or the rows of each rank). Pure.

    tokens [E] -> balance() -> Balance

With c_e tokens of expert e, E experts and mean m = sum c / E:

    max_over_mean   max c / m; 1 is even
    cv              standard deviation / m                                   (Shazeer et al., arXiv:1701.06538)
    entropy         -sum p ln p / ln E with p = c / sum c; 1 is even, 0 is all to one
    gini            mean absolute difference of all pairs / (2 m); 0 is even, 1 - 1/E is all to one
    max_violation   max c / m - 1, called MaxVio                             (Wang et al., arXiv:2408.15664)

MaxVio of a window of steps says less than that of its steps: a load that is uneven in every step, each time elsewhere,
is even in sum and still costs time. `step_violation` is the mean over steps.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Balance:
    """The measures of one load; see the module."""

    max_over_mean: float
    cv: float
    entropy: float
    gini: float

    @property
    def max_violation(self) -> float:
        """MaxVio."""
        return self.max_over_mean - 1


def balance(tokens: Floats) -> Balance | None:
    """The measures of a load; None when there is none, as unevenness of nothing is not zero."""
    total = float(tokens.sum())
    count = len(tokens)
    if count == 0 or not total > 0 or not np.isfinite(total):
        return None
    mean = total / count
    share = tokens[tokens > 0] / total
    entropy = float(-(share * np.log(share)).sum() / np.log(count)) if count > 1 else 1.0
    ranked = np.sort(tokens)
    gini = float((2 * np.arange(1, count + 1) - count - 1) @ ranked / (count * total))
    return Balance(float(ranked[-1]) / mean, float(tokens.std()) / mean, max(0.0, entropy), gini)


def step_violation(tokens: Floats) -> float:
    """MaxVio of one step; NaN when no token was routed."""
    total = float(tokens.sum())
    return float(tokens.max()) * len(tokens) / total - 1 if total > 0 else float("nan")
