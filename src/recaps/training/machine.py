"""What records and messages tell of the machine. Nothing here affects a number that is computed."""

from __future__ import annotations

import platform
import sys
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from importlib.util import find_spec
from typing import Any, cast

import torch

from recaps.nn import kernels
from recaps.training.device import cpuinfo


def describe(device: torch.device) -> str:
    """Return the device's name, for records."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    threads, processor = torch.get_num_threads(), cpuinfo("model name") or platform.processor() or platform.machine()
    return f"{processor}, {threads} thread{'s' if threads > 1 else ''}"


def peak_memory(device: torch.device) -> int:
    """Return the peak memory of the GPU, or else of this process, in bytes."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


@cache
def has_compiler() -> bool:
    """Return whether Numba is installed. If not, say so once and switch to plain PyTorch in the whole process."""
    found = find_spec("numba") is not None
    if not found:
        kernels.disable()
        print("recaps: Numba is missing, so plain PyTorch runs, slower on a CPU; pip install numba", file=sys.stderr)
    return found


def telling_of_compilation() -> AbstractContextManager[Any]:
    """Return a context in which a process says once, in its log and on the terminal, that it compiles kernels."""
    if not has_compiler():
        return nullcontext()
    from numba.core import event

    class Listener(event.Listener):
        told = False

        def on_start(self, _: event.Event) -> None:
            for stream in dict.fromkeys((sys.stderr, sys.__stderr__)) if not self.told else ():
                print("recaps: compiling kernels, once on this machine; takes up to a minute", file=stream, flush=True)
            self.told = True

        def on_end(self, _: event.Event) -> None:
            pass

    return cast(AbstractContextManager[Any], event.install_listener("numba:compile", Listener()))
