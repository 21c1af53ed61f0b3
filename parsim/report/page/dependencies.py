"""Who each span waited for, where ops in between are not shown."""

from __future__ import annotations

import numpy as np

from parsim.report.timeline import Flags, Indices


def visible(causes: Indices, shown: Flags) -> Indices:
    """For each op the nearest op on its chain of causes that is shown, -1 for none.

    Chains lead through ops that are not shown: of no length, or of ranks that are left out.
    """
    nowhere = len(causes)
    step = np.append(np.where(causes < 0, nowhere, causes), nowhere)
    jump = np.where(np.append(shown, True), np.arange(nowhere + 1), step)
    while True:
        further = jump[jump]
        if (further == jump).all():
            break
        jump = further
    found = jump[step[:-1]]
    return np.where(found == nowhere, -1, found)
