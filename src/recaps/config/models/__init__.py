"""Options of the model families: one module per family, named as the family, each with a class `Options`.

A new family needs no entry anywhere: a module here (free of PyTorch, so that validation stays fast) and one of the
same name in `recaps.models` are enough.
"""

from __future__ import annotations

import importlib
import pkgutil
from functools import reduce
from operator import or_
from typing import Annotated, Any

from pydantic import Field

from recaps.config.base import Section

FAMILIES: dict[str, type[Section]] = {
    module.name: importlib.import_module(f"{__name__}.{module.name}").Options
    for module in pkgutil.iter_modules(__path__)
}

#: Any family's options, told apart by their field `family`.
ModelOptions: Any = Annotated[reduce(or_, FAMILIES.values()), Field(discriminator="family")]
