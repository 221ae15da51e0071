"""Gemini's API, converted to chat completions."""
