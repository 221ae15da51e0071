"""The OpenTelemetry distro of ltrain: capture, identity and rewards, in the agent's process."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ltrain_instrument.capture import flush
    from ltrain_instrument.distro import configure
    from ltrain_instrument.identity import Identity
    from ltrain_instrument.rollouts import reward, rollout, task

__all__ = ["Identity", "configure", "flush", "reward", "rollout", "task"]

_HOMES = {
    "Identity": "identity",
    "configure": "distro",
    "flush": "capture",
    "reward": "rollouts",
    "rollout": "rollouts",
    "task": "rollouts",
}


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used: the command line must not pay for the SDK."""
    if name not in _HOMES:
        raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
    from importlib import import_module

    from ltrain_instrument.otel_limits import leave_out_misspelt

    leave_out_misspelt()
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
