"""labkit: the companion package of a course on making language-model inference fast.

`import labkit` is light: torch and transformers are imported when `load` or `LM` is first touched.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from labkit.models import LM, load

__all__ = ["LM", "load"]


def __getattr__(name: str) -> Any:
    """Import `load` and `LM` on first use (PEP 562)."""
    if name in __all__:
        from labkit import models

        return getattr(models, name)
    raise AttributeError(f"module 'labkit' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
