"""The base class of every section of the configuration, and the types of names."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

Name = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9-]*$")]
SetName = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9-]*/[a-z_]+$")]


class Section(BaseModel):
    """A section of the configuration. It is immutable and rejects unknown keys."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)
