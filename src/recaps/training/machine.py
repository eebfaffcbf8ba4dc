"""Descriptions of the machine, for records. Nothing here affects a number that is computed."""

from __future__ import annotations

import platform
import sys

import torch

from recaps.training.device import cpuinfo


def describe(device: torch.device) -> str:
    """Return the device's name, for records."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    threads = torch.get_num_threads()
    return f"{_processor()}, {threads} thread{'s' if threads > 1 else ''}"


def peak_memory(device: torch.device) -> int:
    """Return the peak memory of the GPU, or else of this process, in bytes."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def _processor() -> str:
    return cpuinfo("model name") or platform.processor() or platform.machine()
