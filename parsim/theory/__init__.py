"""Closed forms: what the literature says a step should cost, without simulating it.

The oracle room. It imports nothing but `parsim.units`, and nothing on the way from a scenario to a trace imports it, so a test
or a report that compares a simulation with a formula compares two things that were made apart. Arguments are plain numbers in SI
units (seconds, bytes, FLOP, bytes per second); every formula names its source.

Symbols: p pipeline stages, v model chunks per rank, m micro-batches, tF tB seconds of a stage's forward and backward
(tB = tI + tW: input and weight gradients), c seconds of a message between stages, n ranks of a group, N data-parallel
ranks, P parameters, b micro-batch, s sequence, h hidden, f MLP width, L layers, a heads, k KV heads, V vocabulary, t tensor-parallel.
"""

from parsim.theory.communication import *  # noqa: F403
from parsim.theory.counts import *  # noqa: F403
from parsim.theory.faults import *  # noqa: F403
from parsim.theory.goodput import *  # noqa: F403
from parsim.theory.hashing import *  # noqa: F403
from parsim.theory.local_steps import *  # noqa: F403
from parsim.theory.memory import *  # noqa: F403
from parsim.theory.order_statistics import *  # noqa: F403
from parsim.theory.pipeline import *  # noqa: F403
from parsim.theory.sizing import *  # noqa: F403
