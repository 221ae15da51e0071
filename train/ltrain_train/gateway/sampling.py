"""Sampling that a key imposes: it replaces what would change the sampled tokens' probabilities."""

NEUTRAL: dict[str, float] = {
    "temperature": 1.0,
    "top_p": 1.0,
    "top_k": 0,
    "min_p": 0.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "repetition_penalty": 1.0,
}
"""Sampling from the model's own distribution."""
