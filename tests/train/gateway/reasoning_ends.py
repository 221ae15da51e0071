"""Prints where vLLM begins a grammar in token ids, by each reasoning parser; in vLLM's Python.

`reasoning_ends.py MODEL` reads a JSON object of answers by parser from its input, and prints the
positions of the first id that the grammar accepts and of the first masked id of each answer.
"""

import json
import sys
from types import SimpleNamespace
from typing import Any

from transformers import AutoTokenizer
from vllm.reasoning import ReasoningParserManager
from vllm.sampling_params import StructuredOutputsParams
from vllm.v1.structured_output import StructuredOutputManager
from vllm.v1.structured_output.request import StructuredOutputRequest

THINKS = {"chat_template_kwargs": {"thinking": True, "enable_thinking": True}}
PROMPT = [1]


class AcceptedIds:
    """Counts ids in place of a grammar."""

    def __init__(self) -> None:
        self.count = 0

    def accept_tokens(self, request_id: str, ids: list[int]) -> bool:
        self.count += len(ids)
        return True


def find_start(manager: Any, answer: list[int]) -> tuple[int, int]:
    """Sample the ids one by one, as vLLM's scheduler does."""
    accepted = AcceptedIds()
    structured = StructuredOutputRequest(StructuredOutputsParams(regex="a"))
    structured.reasoning_ended, structured.reasoning_parser_kwargs = False, THINKS
    structured._grammar = accepted
    request: Any = SimpleNamespace(
        request_id="r",
        structured_output_request=structured,
        use_structured_output=True,
        prompt_token_ids=PROMPT,
        all_token_ids=list(PROMPT),
    )
    masked = 0
    for token in answer:
        masked += manager._get_constraint_bounds(request, ()).constraint_start == 0
        request.all_token_ids.append(token)
        manager.accept_tokens(request, [token])
    return len(answer) - accepted.count, len(answer) - masked


def main() -> None:
    tokenizer = AutoTokenizer.from_pretrained(sys.argv[1])
    manager: Any = object.__new__(StructuredOutputManager)
    manager.enable_in_reasoning, manager.tokenizer = False, tokenizer
    found = {}
    for parser, answers in json.load(sys.stdin).items():
        manager.reasoner_cls = ReasoningParserManager.get_reasoning_parser(parser)
        found[parser] = [find_start(manager, answer) for answer in answers]
    print(json.dumps(found))


if __name__ == "__main__":
    main()
