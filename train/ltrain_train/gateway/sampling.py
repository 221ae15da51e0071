"""The neutral sampling parameters, which leave the model's own distribution unchanged."""

NEUTRAL_SAMPLING: dict[str, float] = {
    "temperature": 1.0,
    "top_p": 1.0,
    "top_k": 0,
    "min_p": 0.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "repetition_penalty": 1.0,
}
"""Imposed in mode `train` on each parameter that a rollout key does not set."""
