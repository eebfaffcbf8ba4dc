"""Importing this prepares Numba's compiler, which else takes half a second when a process first calls a kernel."""

from __future__ import annotations

from numba.core.registry import cpu_target

cpu_target.typing_context.refresh()
cpu_target.target_context.refresh()
