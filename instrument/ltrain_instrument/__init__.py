"""The OpenTelemetry distro of ltrain: records spans, identity and rewards of an agent's process."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ltrain_instrument.distro import configure
    from ltrain_instrument.identity import Identity
    from ltrain_instrument.lifecycle import flush
    from ltrain_instrument.prompts import prompt
    from ltrain_instrument.rollouts import reward, rollout, task

__all__ = ["Identity", "configure", "flush", "prompt", "reward", "rollout", "task"]

_MODULES = {
    "Identity": "identity",
    "configure": "distro",
    "flush": "lifecycle",
    "prompt": "prompts",
    "reward": "rollouts",
    "rollout": "rollouts",
    "task": "rollouts",
}


def __getattr__(name: str) -> Any:
    """Import a public name on first use, so that the command line starts without the SDK."""
    if name not in _MODULES:
        raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
    from importlib import import_module

    from ltrain_instrument.settings import remove_invalid_limits

    remove_invalid_limits()
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
