"""recaps: five capsule-network papers, regenerated end to end; their models for your own images."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from recaps.estimators import CapsuleClassifier, CapsuleEncoder
    from recaps.trained import Trained, examples, list_models, load

__version__ = "0.1.0"

__all__ = ["CapsuleClassifier", "CapsuleEncoder", "Trained", "examples", "list_models", "load"]


def __getattr__(name: str) -> Any:
    """Import PyTorch and scikit-learn when they are needed."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    home = "estimators" if name.startswith("Capsule") else "trained"
    return getattr(importlib.import_module(f"{__name__}.{home}"), name)
