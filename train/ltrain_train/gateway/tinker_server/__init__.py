"""A policy server that samples from a server of the Tinker API; it answers as vLLM does."""
