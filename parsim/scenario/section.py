"""The base of every section of a scenario."""

from __future__ import annotations

import ast
import inspect
from itertools import pairwise
from textwrap import dedent
from typing import Any

from pydantic import BaseModel, ConfigDict, GetJsonSchemaHandler
from pydantic_core import CoreSchema


class Section(BaseModel):
    """A mapping with known keys only; immutable; the text under each key is its documentation in editors."""

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True, arbitrary_types_allowed=True)

    @classmethod
    def __get_pydantic_json_schema__(cls, core_schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        """The JSON Schema of the section, every key with its text."""
        # pydantic's use_attribute_docstrings parses the source of every section when it is imported, also where nobody asks for texts
        schema = handler(core_schema)
        properties = handler.resolve_ref_schema(schema)["properties"]
        for name, text in _texts(cls).items():
            key = cls.model_fields[name].alias or name
            properties[key] = {"description": text, **properties[key]}
        return schema


def _texts(section: type[Section]) -> dict[str, str]:
    """Key -> the text that stands under it in the class."""
    body = ast.parse(dedent(inspect.getsource(section))).body[0]
    found: dict[str, str] = {}
    for key, text in pairwise(body.body if isinstance(body, ast.ClassDef) else ()):
        match key, text:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(words))):
                found[name] = inspect.cleandoc(words)
    return found
