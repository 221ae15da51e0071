"""The calls that come without a trace: those of production, and those of attempts.

Both go on after a restart of the gateway. Attempts have files and limits of their own: there are
many, and their calls would otherwise push the conversations of production out.
"""

from collections.abc import Mapping
from pathlib import Path

from opentelemetry.context import Context
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.trace import get_current_span

from ltrain_instrument.attributes import SCOPE_GATEWAY
from ltrain_instrument.identity import Identity
from ltrain_instrument.setting_values import JoinCalls
from ltrain_instrument.settings import CONVERSATION_IDLE, CONVERSATIONS, SESSION_FIELDS
from ltrain_train.gateway.apis import ClientCall
from ltrain_train.gateway.conversations.conversations import Conversations, Placement
from ltrain_train.gateway.conversations.span_ids import SpanIds
from ltrain_train.gateway.conversations.tool_results import Ended


class UntracedCalls:
    """The conversations of a gateway; usable from any thread."""

    def __init__(self, production: Conversations, attempts: Conversations) -> None:
        self.production, self._attempts = production, attempts

    def place(
        self,
        call: ClientCall,
        headers: Mapping[str, str],
        key: str | None,
        identity: Identity,
        context: Context,
    ) -> Placement | None:
        """Return the place of a chat; None for one in a trace, and for a completion of a prompt.

        Args:
            key: that of the call, whether it was required or not.
            identity: the attempt of the call; without a rollout, it is production.
            context: the trace that the call names, if any.
        """
        if call.operation != "chat" or get_current_span(context).get_span_context().is_valid:
            return None
        if identity.rollout is None:
            return self.production.place(call, headers, key, identity)
        attempt = f"{identity.rollout}.{identity.attempt}"  # it may have several keys
        return self._attempts.place(call, headers, attempt, identity)

    def close(self) -> None:
        """Write the rest of what the next process needs."""
        self.production.close()
        self._attempts.close()


def open_conversations(
    provider: TracerProvider, end: Ended, folder: Path | None
) -> UntracedCalls | None:
    """Return the conversations of a gateway; None if `LTRAIN_CONVERSATIONS` is off.

    Args:
        provider: gets an id generator, for tracers that it returns later too.
        end: ends a span that must be written.
        folder: where they are kept; None: in memory only.
    """
    if CONVERSATIONS.read() is JoinCalls.OFF:
        return None
    provider.id_generator = ids = SpanIds()
    tracer, idle = provider.get_tracer(SCOPE_GATEWAY), CONVERSATION_IDLE.read()
    production, attempts = (
        Conversations(
            tracer, ids, end, idle=idle, folder=each, session_fields=SESSION_FIELDS.read()
        )
        for each in (folder, folder and folder / "attempts")
    )
    return UntracedCalls(production, attempts)
