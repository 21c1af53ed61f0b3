"""The base of every section of a scenario."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Section(BaseModel):
    """A mapping with known keys only; immutable; the text under each key is its documentation in editors."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, use_attribute_docstrings=True, validate_default=True, arbitrary_types_allowed=True
    )
