"""The response to a completion, in vLLM's form: complete, or as the events of a stream.

A Tinker server returns an answer when its last token is sampled, so a stream has it in few events.
"""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any
from uuid import uuid4

import orjson

from ltrain_instrument.tokens import DONE, Operation
from ltrain_train.gateway.tinker_server.rendering import ParsedAnswer, Rendering
from ltrain_train.gateway.tinker_server.request import SampledRequest


@dataclass(frozen=True, slots=True)
class Sample:
    """One sampled answer."""

    ids: list[int]
    logprobs: list[float]
    is_cut: bool
    """Whether it ended at its length."""
    stop_text: str | None = None
    """The text of the request at which it ends."""

    def cut_at(self, texts: Sequence[str], rendering: Rendering) -> "Sample":
        """Return the answer up to the token that completes one of the texts.

        A Tinker server stops at token ids or at texts, not at both; so the texts are found here.
        """
        whole = rendering.decode(self.ids)
        if not any(text and text in whole for text in texts):
            return self
        first, last = 1, len(self.ids)
        while first < last:
            middle = (first + last) // 2
            decoded = rendering.decode(self.ids[:middle])
            if any(text and text in decoded for text in texts):
                last = middle
            else:
                first = middle + 1
        decoded = rendering.decode(self.ids[:last])
        found = min((text for text in texts if text and text in decoded), key=decoded.index)
        return Sample(self.ids[:last], self.logprobs[:last], False, found)


@dataclass(frozen=True)
class Completion:
    """The answers to one request."""

    operation: Operation
    request: SampledRequest
    rendering: Rendering
    prompt: list[int]
    samples: Sequence[Sample]
    cached: int
    """Tokens of the prompt that the server had computed before."""

    def body(self) -> bytes:
        """Return the complete response."""
        choices = [self._choice(index) for index in range(len(self.samples))]
        prompt = {"prompt_token_ids": self._prompt_ids} if self._is_chat else {}
        return orjson.dumps({**self._head(), "choices": choices, "usage": self._usage, **prompt})

    def events(self) -> Iterator[bytes]:
        """Yield the events of a stream."""
        indices = range(len(self.samples))
        if self._is_chat:
            first = [_chunk(index, {"role": "assistant", "content": ""}) for index in indices]
            yield self._event(first, prompt_token_ids=self._prompt_ids)
        for index in indices:
            for choice in self._chunks(index):
                yield self._event([choice])
        if self.request.stream_options.get("include_usage"):
            yield self._event([], usage=self._usage)
        yield _encode(DONE)

    @property
    def _is_chat(self) -> bool:
        return self.operation == "chat"

    @property
    def _prompt_ids(self) -> list[int] | None:
        return self.prompt if self.request.return_token_ids else None

    @cached_property
    def _usage(self) -> dict[str, Any]:
        sampled = sum(len(sample.ids) for sample in self.samples)
        return {
            "prompt_tokens": len(self.prompt),
            "completion_tokens": sampled,
            "total_tokens": len(self.prompt) + sampled,
            "prompt_tokens_details": {"cached_tokens": self.cached},
        }

    @cached_property
    def _identity(self) -> dict[str, Any]:
        kind = "chatcmpl" if self._is_chat else "cmpl"
        return {"id": f"{kind}-{uuid4().hex}", "created": int(time.time())}

    def _head(self, chunk: str = "") -> dict[str, Any]:
        kind = f"chat.completion{chunk}" if self._is_chat else "text_completion"
        return {**self._identity, "object": kind, "model": self.request.model}

    def _event(self, choices: list[dict[str, Any]], **fields: Any) -> bytes:
        chunk = {**self._head(".chunk"), "choices": choices, **fields}
        return _encode(orjson.dumps(chunk))

    def _choice(self, index: int) -> dict[str, Any]:
        sample = self.samples[index]
        if not self._is_chat:
            return self._text_choice(index, sample)
        parsed = self._parse(sample)
        message: dict[str, Any] = {"role": "assistant", "content": parsed.content, "refusal": None}
        if parsed.reasoning:
            message["reasoning"] = parsed.reasoning
        if parsed.calls:
            message |= {"tool_calls": parsed.calls, "content": parsed.content or None}
        return {
            **{"index": index, "message": message, "logprobs": self._logprobs(sample)},
            **self._ending(sample, parsed),
            "token_ids": self._token_ids(sample),
        }

    def _text_choice(self, index: int, sample: Sample) -> dict[str, Any]:
        text = self.rendering.decode(sample.ids)
        return {
            **{"index": index, "text": _until(text, sample.stop_text)},
            **{"logprobs": self._logprobs(sample), **self._ending(sample)},
            **{"token_ids": self._token_ids(sample), "prompt_token_ids": self._prompt_ids},
        }

    def _chunks(self, index: int) -> Iterator[dict[str, Any]]:
        """Yield the parts of one answer: its tokens are in the first, its end in the last."""
        choice = self._choice(index)
        if not self._is_chat:
            yield choice
            return
        message, end = choice.pop("message"), self._ending_fields(choice)
        tokens = {name: choice[name] for name in ("logprobs", "token_ids")}
        for name in ("reasoning", "content"):
            if message.get(name):
                yield {**_chunk(index, {name: message[name]}), **tokens}
                tokens = {}
        for number, call in enumerate(message.get("tool_calls", ())):
            yield {**_chunk(index, {"tool_calls": [{**call, "index": number}]}), **tokens}
            tokens = {}
        yield {**_chunk(index, {}), **tokens, **end}

    def _parse(self, sample: Sample) -> ParsedAnswer:
        """Return the message of an answer, up to the text that ends it."""
        parsed = self.rendering.parse(self.request, self.prompt, sample.ids)
        if sample.stop_text is None:
            return parsed
        reasoning = _until(parsed.reasoning or "", sample.stop_text)
        ends_early = reasoning != (parsed.reasoning or "")
        content = "" if ends_early else _until(parsed.content, sample.stop_text)
        return ParsedAnswer(content, reasoning or None, parsed.calls)

    def _ending(self, sample: Sample, parsed: ParsedAnswer | None = None) -> dict[str, Any]:
        """Return why an answer ended, as vLLM reports it."""
        reason = "length" if sample.is_cut else "stop"
        if reason == "stop" and parsed is not None and parsed.calls:
            reason = "tool_calls"
        last = sample.ids[-1] if sample.ids else None
        own = last if last in self.request.stop_token_ids and not sample.is_cut else None
        return {"finish_reason": reason, "stop_reason": sample.stop_text or own}

    def _ending_fields(self, choice: dict[str, Any]) -> dict[str, Any]:
        return {name: choice[name] for name in ("finish_reason", "stop_reason")}

    def _token_ids(self, sample: Sample) -> list[int] | None:
        return sample.ids if self.request.return_token_ids else None

    def _logprobs(self, sample: Sample) -> dict[str, Any] | None:
        if not self.request.has_logprobs:
            return None
        texts = [self.rendering.token(number) for number in sample.ids]
        if not self._is_chat:
            return {"tokens": texts, "token_logprobs": sample.logprobs}
        pairs = zip(texts, sample.logprobs, strict=True)
        return {
            "content": [
                {"token": text, "logprob": value, "bytes": list(text.encode()), "top_logprobs": []}
                for text, value in pairs
            ]
        }


def _chunk(index: int, delta: dict[str, Any]) -> dict[str, Any]:
    return {"index": index, "delta": delta, "logprobs": None, "finish_reason": None}


def _until(text: str, end: str | None) -> str:
    return text if end is None else text.partition(end)[0]


def _encode(data: bytes) -> bytes:
    return b"data: " + data + b"\n\n"
