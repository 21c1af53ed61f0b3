"""Blocks expanded in columns, against one block after the other."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from parsim.program.blocks import Segment
from parsim.simulation.blocks import Course, Inside, expand
from parsim.simulation.expansion import expand_all


def chain(*seconds):
    """Kernels one behind the other; one of another rank makes them a quarter slower."""
    inside = [Inside(kernel=True, seconds=each, memory_bound=0.0, load=None) for each in seconds]
    segments = [Segment(place, place + 1, ((),), (0,)) for place in range(len(seconds))]
    return Course(inside, segments, lambda loads, _: 0.75 if loads else 1.0)


COURSES = [chain(1.0, 0.1), chain(0.3), chain(0.7, 0.2, 0.1), None]


@given(
    st.lists(st.tuples(st.integers(0, 3), st.floats(0.0, 100.0), st.floats(0.0, 2.0), st.sampled_from(["never", "throughout", "later"]))),
)
def test_all_at_once_is_one_after_the_other(rows):
    starts, ends, courses, logs, expected = [], [], {}, {}, ([], [])
    for number, (which, start, share, loaded) in enumerate(rows):
        course = COURSES[which]
        log = {"never": [(start, ())], "throughout": [(start, ("x",))], "later": [(start, ()), (start + share * 0.4, ("x",))]}[loaded]
        starts.append(start)
        if course is None:
            ends.append(start + share)
            begun, over = [start], [start + share]
        else:
            ends.append(start + 3.0)
            courses[number] = course
            if loaded != "never":
                logs[number] = log
            begun, over = expand(course, start, start + 3.0, log)
        expected[0].extend(begun)
        expected[1].extend(over)
    found = expand_all(starts, ends, courses, logs)
    assert (found[0].tolist(), found[1].tolist()) == expected


def test_a_block_ends_when_it_ended():
    found = expand_all([1.0, 5.0], [2.5, 6.0], {0: COURSES[0]}, {})
    assert (found[0].tolist(), found[1].tolist()) == ([1.0, 2.0, 5.0], [2.0, 2.5, 6.0])
