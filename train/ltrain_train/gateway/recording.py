"""Whether spans are on disk: an answer that is not recorded is not given."""

from collections.abc import Callable
from http import HTTPStatus

from ltrain_train.gateway.refusal import Refused


class Recording:
    """Ends spans and knows whether the spool took the last of them."""

    def __init__(self) -> None:
        self.trouble = ""
        """Why the last span could not be written; '' when it was."""

    def end(self, end: Callable[[], None]) -> bool:
        """End a span and return whether it is on disk."""
        try:
            end()
        except OSError as error:
            self.trouble = str(error)
            return False
        self.trouble = ""
        return True

    def require(self, end: Callable[[], None]) -> None:
        """End a span that must be on disk.

        Raises:
            Refused: 503, when it cannot be written.
        """
        if not self.end(end):
            raise Refused(
                HTTPStatus.SERVICE_UNAVAILABLE,
                f"The gateway gives no answer that it cannot record: {self.trouble}. Free space "
                "on the disk, or start the collector that the spool waits for.",
            )
