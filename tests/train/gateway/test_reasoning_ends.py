"""The grammar of a call begins where the installed vLLM begins it, after the model's reasoning."""

import json
import os
import random
import subprocess
from pathlib import Path

import pytest
from tests.train.tiny import write_model

from ltrain_train.gateway.serving.applied_constraints import REASONING_ENDS
from ltrain_train.learner.masks import Grammars
from ltrain_train.policy import Constraint
from ltrain_train.vllm_python import find_python

PROGRAM = Path(__file__).with_name("reasoning_ends.py")
DOCS = Path(__file__).parents[3] / "docs" / "learner.md"
MORE = (
    *("<think>", "<seed:think>", "<|channel>", "</tool_call>"),
    *("<|im_start|>", "<|im_end|>", "<assistant>"),
)
"""Tokens that the parsers read and that end no reasoning."""
ANSWERS = 60


@pytest.mark.nightly  # it changes only with the release of vLLM, or with `applied_constraints`
def test_the_grammar_begins_where_vllm_begins_it(tmp_path: Path) -> None:
    ends = sorted({token for end in REASONING_ENDS.values() for token in end if token} | {*MORE})
    model, draw = write_model(tmp_path / "model", more=ends), random.Random(0)
    grammars = Grammars(model)
    choices = [*range(3), *range(grammars.vocab_size - len(ends), grammars.vocab_size)]
    answers = {
        parser: [draw.choices(choices, k=draw.randrange(1, 30)) for _ in range(ANSWERS)]
        for parser in REASONING_ENDS
    }
    printed = subprocess.run(
        [find_python(), PROGRAM, model],
        input=json.dumps(answers),
        env={**os.environ, "PYTHONPATH": "", "VLLM_LOGGING_LEVEL": "ERROR"},
        stdout=subprocess.PIPE,
        check=True,
        text=True,
    ).stdout
    expected = json.loads(printed.splitlines()[-1])
    for parser, (end, tool) in REASONING_ENDS.items():
        constraint = Constraint(kind="regex", spec="a", reasoning_end=end, tool_start=tool)
        found = [grammars.find_start(constraint, answer) for answer in answers[parser]]
        assert found == [tuple(each) for each in expected[parser]], parser


def test_the_page_of_the_learner_names_the_reasoning_parsers() -> None:
    page = DOCS.read_text()
    assert [parser for parser in REASONING_ENDS if f"`{parser}`" not in page] == []
