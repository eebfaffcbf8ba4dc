"""The device that models run on, and its precision."""

from __future__ import annotations

import ctypes
import os
import platform
import sys
from contextlib import AbstractContextManager

import torch
from torch import Tensor

from recaps.errors import UserError

NAMES = ("auto", "cpu", "cuda")


def choose(name: str, threads: int | None = None) -> torch.device:
    """Return the device for `auto`, `cpu` or `cuda`, and make PyTorch deterministic where it can be.

    It cannot be on a GPU in `recaps.nn.poses.warp`, whose gradient adds up in any order.

    Raises:
        UserError: another name, fewer than one thread, or `cuda` is requested, but there is no GPU.
    """
    if name not in NAMES:
        raise UserError(f"device: there is no device '{name}'; use auto, cpu or cuda")
    if threads is not None and threads < 1:
        raise UserError(f"threads: {threads} is too few; use at least 1")
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    # Same effect as use_deterministic_algorithms(True, warn_only=True), without importing the compiler (1 s).
    torch.set_deterministic_debug_mode("warn")
    # float32 is the reference: without TF32, which rounds factors to 10 bits.
    torch.backends.cudnn.allow_tf32 = False
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    # Gradients have many values below 1e-38, with which products take two to four times as long: they become zero.
    torch.set_flush_denormal(True)
    if threads:
        torch.set_num_threads(threads)
    if name == "cuda" and not torch.cuda.is_available():
        raise UserError(
            "device: cuda is requested, but PyTorch finds no GPU that it can use (perhaps the driver is old, or this"
            " PyTorch is built for CPUs); use cpu or auto"
        )
    if name == "cpu" or not torch.cuda.is_available():
        keep_memory()
        multiply_by_onednn()
        return torch.device("cpu")
    return torch.device("cuda")


def keep_memory() -> None:
    """Keep freed memory in the process (glibc).

    By default the system allocates every large tensor anew and zeroes its pages, which takes longer than filling them:
    keeping the memory reduced the time of routing at 40x40, forward and backward, from 1.1 s to 0.6 s.
    """
    if sys.platform == "linux" and platform.libc_ver()[0] == "glibc":
        trim_threshold, top_pad, mmap_max = -1, -2, -4
        libc = ctypes.CDLL("libc.so.6")
        libc.mallopt(mmap_max, 0)
        libc.mallopt(trim_threshold, 2**31 - 1)
        libc.mallopt(top_pad, 2**28)


def multiply_by_onednn() -> None:
    """Let oneDNN multiply float32 matrices on AVX-512 processors that are not Intel's.

    There MKL, PyTorch's default, uses half of the vector unit. The setting allows oneDNN to round factors to bfloat16,
    which it does only if the processor has a unit for such products (AMX).
    """
    has_amx = torch.cpu.get_capabilities().get("amx_bf16")
    wide = torch.backends.cpu.get_cpu_capability() == "AVX512"
    if wide and not has_amx and cpuinfo("vendor_id") != "GenuineIntel":
        torch.backends.mkldnn.matmul.fp32_precision = "bf16"  # type: ignore[attr-defined]


def move(values: Tensor, device: torch.device) -> Tensor:
    """Copy values from the host to a device. A GPU copies them from page-locked memory, so that the host goes on."""
    return values.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else values


def arithmetic(device: torch.device, precision: str) -> AbstractContextManager[None]:
    """Return a context with bfloat16 autocast if `precision` means `bf16` on this device."""
    return torch.autocast(device.type, torch.bfloat16, enabled=resolve(device, precision) == "bf16")


def resolve(device: torch.device, precision: str) -> str:
    """Return `bf16` or `float32`. `auto` is `bf16` if the device has a unit for products of matrices in bfloat16.

    These are GPUs since 2020 and CPUs with AMX. Other CPUs need as long in bfloat16 as in float32, or longer.
    """
    if precision != "auto":
        return precision
    if device.type == "cuda":
        return "bf16" if torch.cuda.is_bf16_supported(including_emulation=False) else "float32"
    return "bf16" if device.type == "cpu" and torch.cpu.get_capabilities().get("amx_bf16") else "float32"


def cpuinfo(key: str) -> str:
    """Return a line of Linux's description of the processor, or an empty text."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            return next((line.split(":", 1)[1].strip() for line in file if line.startswith(key)), "")
    except OSError:
        return ""
