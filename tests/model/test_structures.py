"""The models that tests of structure look at stand for all that are shipped."""

from __future__ import annotations

from structures import STRUCTURES, structure

from parsim.scenario import files


def test_every_shipped_model_has_the_structure_of_one_that_is_tested() -> None:
    tested = {structure(name): name for name in STRUCTURES}
    assert len(tested) == len(STRUCTURES), "two of them have one structure"
    assert [name for name in files.names("models") if structure(name) not in tested] == []
