"""The program of docs/python.md, run as it is printed: an agent, `ltrain up`, then the reader."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from tests.up import running_up

from ltrain import Dataset

PAGE = (Path(__file__).parents[2] / "docs" / "python.md").read_text()
BLOCKS = re.findall(r"^```\w+\n# (\S+)\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
AGENT = """
from opentelemetry import trace

def answer(question: str) -> str:
    attributes = {"gen_ai.operation.name": "chat", "gen_ai.request.model": "small"}
    with trace.get_tracer("my_agent").start_as_current_span("chat small", attributes=attributes):
        return "4"
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder with the files of the page and an agent that makes one call a task."""
    for name, text in BLOCKS:
        (tmp_path / name).write_text(text)
    (tmp_path / "my_agent.py").write_text(AGENT)
    return tmp_path


def test_page_has_an_agent_a_recipe_a_reader_and_a_training() -> None:
    assert [name for name, _ in BLOCKS] == ["agent.py", "ltrain.toml", "read.py", "train.py"]


def test_example_builds_a_dataset_from_a_real_store(folder: Path) -> None:
    home = folder / "home"
    store = f"chdb://{home}/store"  # not that of a collector that happens to run
    own = {"LTRAIN_HOME": str(home), "LTRAIN_STORE": store, "PYTHONPATH": str(folder)}
    environ = {**os.environ, **own}
    with running_up(home / "store", environ=environ) as up:
        endpoint = {"OTEL_EXPORTER_OTLP_ENDPOINT": up.endpoint}
        launcher = Path(sys.executable).parent / "opentelemetry-instrument"
        command = [str(launcher), sys.executable, "agent.py"]
        subprocess.run(command, cwd=folder, env=environ | endpoint, check=True, timeout=60)
    reader = subprocess.run(
        [sys.executable, "read.py"],
        cwd=folder,
        env=environ,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert reader.returncode == 0, reader.stderr
    dataset = Dataset.open(folder / "dataset")
    assert dataset.counts["calls"] == 2
    rewards = dataset.table("rewards")
    assert sorted(rewards["value"]) == [0.0, 1.0]
    assert str(rewards.select("execution_id", "rule", "value")) in reader.stdout
    assert dataset.drops["reason"].to_list() == ["alone", "alone"]
    assert "train 0" in reader.stdout and "Distribution" in reader.stdout
