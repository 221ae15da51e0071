"""Train the agent you already run, from the traces it already emits."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ltrain_instrument import configure, flush, reward, rollout, task

__version__ = "0.1.0"
__all__ = ["configure", "flush", "reward", "rollout", "task"]


def __getattr__(name: str) -> Any:
    """Import a public name at its first use, so that the command line starts fast."""
    if name not in __all__:
        raise AttributeError(f"module 'ltrain' has no attribute '{name}'")
    import ltrain_instrument

    return getattr(ltrain_instrument, name)
