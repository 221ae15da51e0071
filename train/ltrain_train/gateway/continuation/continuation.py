"""The prompt of one call by token ids: those of an earlier turn, and those of the new messages."""

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any

from ltrain_instrument import attributes
from ltrain_instrument.identity import Identity
from ltrain_instrument.tokens import ModelResponse
from ltrain_train.gateway.apis import find_rule
from ltrain_train.gateway.continuation.known_turns import (
    KnownTurns,
    Turn,
    make_turn,
    read_history,
)
from ltrain_train.gateway.continuation.new_messages import render_new
from ltrain_train.gateway.conversations.message_digests import Message, digest
from ltrain_train.gateway.serving.upstream import Upstream

UNFIT_FIELDS = (
    *("continue_final_message", "echo", "truncate_prompt_tokens"),
    *("kv_transfer_params", "prompt_embeds"),
)
"""Fields with which a prompt cannot be given as ids."""
NEW_ROLES = ("user", "tool", "system", "developer")


class Plain(StrEnum):
    """Why a call that repeats an earlier answer gets the plain prompt."""

    UNKNOWN = "unknown"
    """No answer in it is known: the agent changed the history, the gateway started anew, or the
    turn was forgotten."""
    FIELDS = "fields"
    """Its tools or other fields of the prompt differ from those of the earlier call."""
    CUT = "cut"
    """The earlier answer was cut at its length or by a stop sequence."""
    MESSAGES = "messages"
    """Its new messages are none, have an answer of the assistant, or have more than text."""
    TEMPLATE = "template"
    """The ids of the new messages do not follow from the chat template."""
    TOO_LONG = "too_long"
    """The prompt and the answer would not fit into the context window."""
    SERVER = "server"
    """The server ignored the ids."""


class Continuation:
    """The prompt of one call."""

    def __init__(
        self, turns: KnownTurns, identity: Identity, policy: str, body: Mapping[str, Any]
    ) -> None:
        """Read the messages of a call; this takes long for long ones and is safe in a thread."""
        owner = digest(f"{identity.rollout} {identity.attempt} {policy}".encode())
        self._turns, self._body = turns, body
        self._history = read_history(owner, body)
        self._turn: Turn | None = None
        self.ids: list[int] | None = None
        """The prompt; None if it is the plain one."""
        self.reason: Plain | None = None
        """Why it is the plain one, although the call repeats an answer."""

    @property
    def attributes(self) -> dict[str, str | int]:
        """The attributes of the call's span."""
        reason = {attributes.NOT_CONTINUED: self.reason.value} if self.reason else {}
        known = len(self._turn.ids) if self.ids and self._turn else 0
        return {attributes.CONTINUED: known, **reason}

    @property
    def fields(self) -> dict[str, Any]:
        """The fields of the request that give vLLM the prompt's ids; none for the plain prompt.

        vLLM takes the ids where a server that has computed a prompt's keys and values hands them
        over; without such a server it only skips the chat template.
        """
        return {"kv_transfer_params": {"prompt_token_ids": self.ids}} if self.ids else {}

    async def find_prompt(self, upstream: Upstream, model: str) -> None:
        """Set the prompt, or the reason why it is the plain one.

        Raises:
            UpstreamFailed: when the server does not answer.
        """
        if self._history.answers and self.ids is None:
            self.reason = await self._continue(upstream, model)

    async def _continue(self, upstream: Upstream, model: str) -> Plain | None:
        found = self._turns.find(self._history)
        if found is None:
            return Plain.UNKNOWN
        turn, answer = found
        if turn.end is None:
            return Plain.CUT
        if turn.fields != self._history.fields or any(map(self._body.get, UNFIT_FIELDS)):
            return Plain.FIELDS
        if not _is_text(self._body["messages"], answer):
            return Plain.MESSAGES
        new = await render_new(upstream, {**self._body, "model": model}, answer, turn.end)
        if new is None:
            return Plain.TEMPLATE
        ids = [*turn.ids, *new]
        if not self._fits(len(ids), upstream.max_model_len):
            return Plain.TOO_LONG
        self._turn, self.ids = turn, ids
        return None

    def _fits(self, prompt: int, limit: int | None) -> bool:
        answer = self._body.get("max_completion_tokens") or self._body.get("max_tokens") or 1
        return limit is None or prompt + answer <= limit

    def end(self, response: ModelResponse) -> None:
        """Check that the server read the ids, and remember the turn."""
        prompt, choices = response.prompt_token_ids, response.ordered_choices
        if self.ids is not None and prompt != self.ids:
            self.ids, self.reason = None, Plain.SERVER
        if prompt is None or len(choices) != 1:
            return
        choice = choices[0]
        cut = choice.finish_reason == "length" or isinstance(choice.stop_reason, str)
        turn = make_turn(prompt, choice.token_ids, self._history, cut=cut)
        self._turns.add(self._history.answered(choice.message), turn)


def _is_text(messages: Sequence[Message], answer: int) -> bool:
    """Return whether messages follow the answer, all in roles of their own, and all are texts."""
    new = messages[answer + 1 :]
    roles = all(each.get("role") in NEW_ROLES for each in new)
    return bool(new) and roles and not find_rule("messages", messages).allow
