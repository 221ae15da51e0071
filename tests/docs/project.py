"""A user's folder as the docs assume it: agent, recipe, datasets, a policy and a store's server."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from tests.docs.blocks import ROOT
from tests.fork_server import ltrain_command
from tests.otlp import insert_otlp, open_empty_store
from tests.train.gateway.conftest import write_adapter, write_model
from tests.transforms.conftest import NOON, Attempt, Scene
from tests.up import running_up

from ltrain_collector.access import Keys, Role
from ltrain_collector.signals import LOGS
from ltrain_train.policy import Policies
from ltrain_transforms.datasets import build
from ltrain_transforms.recipe import Recipe

WAIT = 180
"""Seconds to wait for a process that takes a few on an idle machine."""
BIN = Path(sys.executable).parent
FILES = {
    "ltrain.toml": """
[source]
run = "demo"
[[policy]]
name = "sql"
[[reward]]
name = "answer"
evaluation = "reward"
""",
    "agent.py": """
import httpx

def solve(task, llm):
    body = {"model": llm.model, "messages": [{"role": "user", "content": task["input"]}]}
    headers = {"authorization": f"Bearer {llm.api_key}"}
    answer = httpx.post(f"{llm.base_url}/chat/completions", json=body, headers=headers)
    return answer.raise_for_status().json()["choices"][0]["message"]["content"]
""",
    "my_agent.py": "def answer(question, llm=None):\n    return '4'\n",
    "reward.py": "def score(task, result):\n    return 1.0\n\n\nexact = score\n",
    "greeting.txt": "Answer in one word.\n",
    "train.jsonl": '{"id": "t1", "input": "2 + 2", "gold": "4"}\n',
}
RUNS = ("demo", "text-to-sql", "train")
IDS = {"demo": "49b47e5d2acd61c45e730b4a357ebff", "text-to-sql": "3f2a7c11"}
"""The beginning of the id of a run's first rollout, in the docs."""
TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
"""The trace of the first rollout of the run `train`, in the docs."""
SECRET = "a store's secret of more than thirty-two characters"
VERSIONS = 10
TINY = ROOT / "tests" / "train" / "tiny.py"


def scene(run: str) -> Scene:
    """Return groups of two judged rollouts in two train waves and in production."""
    scene = Scene(run)
    for mode, wave in (("train", 0), ("train", 3), ("prod", None)):
        for sample in (0, 1):
            scene.attempt(sample=sample, mode=mode, wave=wave)
    scene.attempts[0] = named(scene.attempts[0], IDS.get(run, ""))
    if run == "train":
        scene.attempts[0].trace = TRACE
    for attempt in scene.attempts:
        record(attempt, int(attempt.identity.sample or 0))
    return scene


def named(attempt: Attempt, beginning: str) -> Attempt:
    """Return the attempt at a rollout whose id begins so, and whose trace id does not."""
    rollout = (beginning + str(attempt.identity.rollout))[:32]
    found = Attempt(replace(attempt.identity, rollout=rollout), clock=attempt.clock)
    found.trace = found.trace[::-1]
    return found


def record(attempt: Attempt, reward: int) -> None:
    """Record a model call, a tool call that fails without reward, and the evaluation."""
    attempt.dispatch()
    attempt.llm(text=f"answer {reward}", response=(4, 5 + reward), state={"query": "SELECT 1"})
    attempt.tool(error="" if reward else "no such table")
    attempt.evaluate(float(reward))
    attempt.close()


def log_record(run: str) -> bytes:
    """Return a request with one log record of a run."""
    request = ExportLogsServiceRequest()
    record = request.resource_logs.add().scope_logs.add().log_records.add(time_unix_nano=NOON)
    record.body.string_value = "hello"
    record.attributes.add(key="ltrain.run.id").value.string_value = run
    return bytes(request.SerializeToString())


def write_project(folder: Path, store: Path) -> None:
    """Write the folder, and its traces to the store."""
    for name, text in FILES.items():
        (folder / name).write_text(text)
    (folder / "otel-config").symlink_to(ROOT / "otel-config")
    (folder / "traces").mkdir()
    shutil.copy(ROOT / "tests/fixtures/langchain__traceloop-0.62.4.otlp.json", folder / "traces")
    with open_empty_store(store) as opened:
        for run in RUNS:
            insert_otlp(opened, scene(run).request())
        insert_otlp(opened, log_record("demo"), LOGS)
        recipe = Recipe.load(folder / "ltrain.toml")
        for name in ("datasets/first", ".ltrain/datasets/demo/train"):
            build(opened, recipe, folder / name)
        build(opened, recipe, folder / "datasets/second", wave=3)
    write_policy(folder / ".ltrain")
    Keys(folder / ".ltrain" / "store").make_key(Role.QUERY)


def write_policy(home: Path) -> None:
    """Write a model of one tensor with a tokenizer, and a policy with ten later versions of it."""
    model = write_model(home / "models" / "smollm2")
    tiny = home.parent.parent / "tiny"  # by a process of its own: torch takes seconds to import
    subprocess.run([sys.executable, TINY, tiny], check=True, capture_output=True, timeout=WAIT)
    for file in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        shutil.copy(tiny / file, model)
    write_adapter(home.parent / "adapters" / "sql-lora")
    policies = Policies(home)
    policies.register("sql", model)
    for parent in range(VERSIONS):
        draft = policies.draft("sql")
        shutil.copytree(model, draft)
        policies.register_files("sql", draft, parent=parent, dataset="5d0c41a8", recipe="4cc2b6ae")


def inherited() -> dict[str, str]:
    """Return the environment without the settings of ltrain and OpenTelemetry."""
    removed = ("LTRAIN_", "OTEL_")
    return {name: text for name, text in os.environ.items() if not name.startswith(removed)}


@dataclass(frozen=True)
class Project:
    """A folder with a server of its store."""

    folder: Path
    otlp: str
    grpc: str
    sql: str
    """host:port of each."""

    @property
    def key_id(self) -> str:
        """The id of a key of the store in the folder."""
        return Keys(self.folder / ".ltrain" / "store").made_keys()[0].id

    @property
    def environ(self) -> dict[str, str]:
        folder = str(Path(ltrain_command()).parent)
        own = {
            "PATH": os.pathsep.join([folder, str(BIN), os.environ["PATH"]]),
            "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://{self.otlp}",
            "LTRAIN_STORE": f"http://{self.sql}",
            "HF_HOME": str(self.folder / "huggingface"),
            "LTRAIN_STORE_SECRET": SECRET,
            "COLUMNS": "200",
        }
        return {**inherited(), **own}

    def copy(self, folder: Path) -> "Project":
        """Copy the folder for one block; the server stays the same."""
        shutil.copytree(self.folder, folder, symlinks=True, dirs_exist_ok=True)
        return replace(self, folder=folder)

    def run(self, *command: str) -> subprocess.CompletedProcess[str]:
        """Run a command in the folder; a failure is an `AssertionError` with its output."""
        done = subprocess.run(
            command,
            cwd=self.folder,
            env=self.environ,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=WAIT,
            check=False,
        )
        assert done.returncode == 0, f"{command[-1]}\n{done.stdout}\n{done.stderr}"
        return done


@contextmanager
def serve_project(folder: Path, store: Path) -> Iterator[Project]:
    """Run `ltrain up` on free ports."""
    with running_up(store, environ={**inherited(), "LTRAIN_STORE_SECRET": SECRET}) as up:
        yield Project(folder, *(f"127.0.0.1:{port}" for port in (up.otlp, up.grpc, up.sql)))
