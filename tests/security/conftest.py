"""What tests of security share with those of the collector."""

from tests.collector.conftest import folder, request_of

__all__ = ["folder", "request_of"]
