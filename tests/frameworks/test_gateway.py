"""litellm, in its own environment, against the gateway."""

import os
import subprocess
from pathlib import Path

import pytest
from tests.fake_vllm import FakeVllm
from tests.train.gateway.conftest import load, write_model

from ltrain_instrument.allow import Allow

ROOT = Path(__file__).parents[2]
ENVIRONMENT = "openai2"
CLIENT = Path(__file__).parent / "agents" / "litellm_client.py"


def test_litellm_calls_the_gateway_over_two_apis(tmp_path: Path) -> None:
    python = ROOT / f".venv-{ENVIRONMENT}" / "bin" / "python"
    if not python.exists():
        pytest.fail(f"{python.parent.parent.name} is missing: make test-frameworks makes it")
    with FakeVllm() as vllm:
        stage = load("stage").Stage(vllm.url, tmp_path / "home")
        stage.policies.register("policy", write_model(tmp_path / "model"))
        with stage.running():
            identity = stage.identity
            path = f"/rollout/{identity.rollout}/attempt/{identity.attempt}/v1"
            variables = {
                "OPENAI_BASE_URL": stage.url + path,
                "OPENAI_API_KEY": stage.key(allow=tuple(Allow)),
                "LITELLM_LOCAL_MODEL_COST_MAP": "True",
            }
            done = subprocess.run(
                [python, CLIENT],
                env={**os.environ, **variables},
                capture_output=True,
                text=True,
                timeout=180,
            )
        assert done.returncode == 0, done.stderr
    answers = [line for line in done.stdout.splitlines() if line.strip()]
    of_each_api = ["w3 w14", "w3 w14", "['Rome', 'Oslo']"]
    assert answers == [*of_each_api, *of_each_api, "w3 w4", "True"]
    ids = [span["attributes"].get("ltrain.response_token_ids") for span in stage.spans()]
    assert ids.count("[3,14]") == 4
    assert "[[3],[4]]" in ids
