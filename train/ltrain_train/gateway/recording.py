"""Recording of spans on disk: the gateway sends no response that it cannot record."""

from collections.abc import Callable
from http import HTTPStatus

from ltrain_train.gateway.errors import Refused


class Recording:
    """Ends spans and remembers whether the last one was written to the spool."""

    def __init__(self) -> None:
        self.error = ""
        """Why the last span could not be written; '' if it was."""

    def end_span(self, end_span: Callable[[], None]) -> bool:
        """End a span and return whether it was written."""
        try:
            end_span()
        except OSError as error:
            self.error = str(error)
            return False
        self.error = ""
        return True

    def require_span(self, end_span: Callable[[], None]) -> None:
        """End a span that must be written.

        Raises:
            Refused: 503, when the span cannot be written.
        """
        if not self.end_span(end_span):
            raise Refused(
                HTTPStatus.SERVICE_UNAVAILABLE,
                f"The gateway cannot record the call, so it sends no response: {self.error}. Free "
                "space on the disk, or start the collector so that the spool empties.",
            )
