"""Several choices of one call, from the policy server to the tables of a build."""

from pathlib import Path
from typing import Any

import pytest
from tests.fake_vllm import logprob
from tests.otlp import insert_otlp, open_empty_store

from ltrain_instrument.allow import Allow
from ltrain_transforms.calls import calls
from ltrain_transforms.recipe import Source
from ltrain_transforms.source import Selection, read_spans

IDS = [[3, 14], [4, 15], [5, 16]]


@pytest.mark.parametrize("stream", [False, True])
def test_the_choice_that_the_agent_continues_is_marked(
    stage: Any, tmp_path: Path, stream: bool
) -> None:
    key = stage.key(allow=(Allow.CHOICES,))
    question = {"role": "user", "content": "w3 w14 vary"}
    stage.ask(question["content"], key=key, n=3, temperature=1, stream=stream)
    answer = {"role": "assistant", "content": " w4 w15" if stream else "w4 w15"}
    history = [question, answer, {"role": "user", "content": "w7"}]
    body = {"model": "policy", "messages": history, "temperature": 1}
    assert stage.post("/v1/chat/completions", body, key=key).status_code == 200
    with open_empty_store(tmp_path / "spans") as store:
        for request in stage.otlp_requests():
            insert_otlp(store, request)
        spans, _ = read_spans(store, Source(), Selection())
    several, later = calls(spans)[0].sort("seq").to_dicts()
    assert several["response_token_ids"] == IDS
    assert several["response_logprobs"] == [[logprob(token) for token in ids] for ids in IDS]
    assert (several["choice"], later["choice"]) == (1, None)
    assert later["response_token_ids"] == [[7]]
