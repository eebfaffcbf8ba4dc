"""The device that models run on, and its arithmetic."""

from __future__ import annotations

import ctypes
import os
import platform
import sys
from contextlib import AbstractContextManager

import torch

from recaps.errors import UserError


def choose(name: str, threads: int | None = None) -> torch.device:
    """Return the device for `auto`, `cpu` or `cuda`, and set PyTorch up so that equal runs give equal bits.

    Raises:
        UserError: a GPU is asked for and there is none.
    """
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    # As use_deterministic_algorithms(True, warn_only=True), which would load PyTorch's compiler: a second per process.
    torch.set_deterministic_debug_mode("warn")
    # float32 is the reference; by default a GPU would round its factors to 10 bits.
    torch.backends.cudnn.allow_tf32 = False
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    if threads:
        torch.set_num_threads(threads)
    if name == "cuda" and not torch.cuda.is_available():
        raise UserError(
            "device: cuda is asked for, but PyTorch sees no GPU here; set device: cpu or auto in config.yaml"
        )
    if name == "cpu" or not torch.cuda.is_available():
        keep_memory()
        return torch.device("cpu")
    return torch.device("cuda")


def keep_memory() -> None:
    """Keep freed memory in the process (glibc).

    By default every large tensor is fresh memory from the system, and to have its pages zeroed takes longer than to
    fill them: without, routing at 40x40, forward and backward, took 0.6 s instead of 1.1 s.
    """
    if sys.platform == "linux" and platform.libc_ver()[0] == "glibc":
        trim_threshold, top_pad, mmap_max = -1, -2, -4
        libc = ctypes.CDLL("libc.so.6")
        libc.mallopt(mmap_max, 0)
        libc.mallopt(trim_threshold, 2**31 - 1)
        libc.mallopt(top_pad, 2**28)


def arithmetic(device: torch.device, precision: str) -> AbstractContextManager[None]:
    """Autocast to bfloat16, or none for float32."""
    return torch.autocast(device.type, torch.bfloat16, enabled=precision == "bf16")


def describe(device: torch.device) -> str:
    """The device's name, for records."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    threads = torch.get_num_threads()
    return f"{_processor()}, {threads} thread{'s' if threads > 1 else ''}"


def peak_memory(device: torch.device) -> int:
    """Largest memory used so far, in bytes: the GPU's, or the process's."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def _processor() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            names = [line.split(":", 1)[1].strip() for line in file if line.startswith("model name")]
    except OSError:
        names = []
    return names[0] if names else platform.processor() or platform.machine()
