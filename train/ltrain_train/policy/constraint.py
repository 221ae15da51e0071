"""The constraint of a call: the grammar by which the policy server masked the sampled token ids.

vLLM 0.32 with its backend `xgrammar` compiles it (`v1/structured_output/backend_xgrammar.py`). The
gateway records it beside the call, and the learner compiles it again with the same library.
"""

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict

Kind = Literal["json", "regex", "grammar", "structural_tag"]

JSON_OBJECT = '{"type": "object"}'
"""The schema that vLLM compiles for `json_object`."""
ESCAPES = {"\\": r"\\", '"': r"\"", "\n": r"\n", "\r": r"\r", "\t": r"\t"}


class Constraint(BaseModel):
    """A grammar, and the settings of the server that change its masks."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: Kind
    """The form of the grammar."""
    spec: str
    """JSON schema, regular expression, EBNF or Lark grammar, or structural tag."""
    stop_token_ids: tuple[int, ...] = ()
    """Ids of the request that end the answer, besides those of the model."""
    server: str = ""
    """The version of vLLM that sampled."""
    reasoning_end: str = ""
    """The token that ends the model's reasoning: the grammar begins after it. Empty: the grammar
    begins with the answer."""
    tool_start: str = ""
    """A token that also ends the reasoning. The grammar begins with it, although vLLM samples it
    from all ids."""

    @classmethod
    def from_structured_outputs(cls, params: Mapping[str, Any], **settings: Any) -> Self | None:
        """Return the constraint of vLLM's `StructuredOutputsParams`; None if there is none.

        Choices are a grammar, as in vLLM.
        """
        found: tuple[tuple[Kind, Any], ...] = (  # in vLLM's order
            ("json", params.get("json")),
            ("json", JSON_OBJECT if params.get("json_object") else None),
            ("regex", params.get("regex")),
            ("grammar", choices_grammar(params.get("choice") or ())),
            ("grammar", params.get("grammar")),
            ("structural_tag", params.get("structural_tag")),
        )
        for kind, spec in found:
            if spec is not None:
                text = spec if isinstance(spec, str) else json.dumps(spec)
                return cls(kind=kind, spec=text, **settings)
        return None

    @property
    def is_lark(self) -> bool:
        """Whether a grammar is in Lark's syntax: no line defines a rule of EBNF."""
        lines = (re.sub(r"(#|//).*$", "", line) for line in self.spec.split("\n"))
        return not any("::=" in line for line in lines)


def choices_grammar(choices: Iterable[str]) -> str | None:
    """Return the EBNF grammar of choices, as vLLM's `choice_as_grammar`; None without one."""
    quoted = [f'"{"".join(map(_escape, choice))}"' for choice in choices]
    return f"root ::= {' | '.join(quoted)}" if quoted else None


def _escape(character: str) -> str:
    if character in ESCAPES:
        return ESCAPES[character]
    code = ord(character)
    return f"\\u{code:04x}" if code < 0x20 or code == 0x7F else character
