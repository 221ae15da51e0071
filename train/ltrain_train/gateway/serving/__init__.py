"""Policies in their servers: weights and adapters are loaded, replaced and pinned here."""
