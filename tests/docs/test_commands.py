"""The commands of the docs run in a prepared folder; those that cannot are parsed and declared.

A block is one script of bash, with `set -e`, in a copy of the folder of its own. Addresses and ids
of the page become those of this machine; every other word stays as it is printed.
"""

import re
import shlex
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import typer
from tests.docs.blocks import BLOCKS, ROOT, Block, parametrize
from tests.docs.project import Project
from tests.otlp import open_empty_store

from ltrain.cli import app
from ltrain_instrument.instrumentors.choice import DISABLED


@dataclass(frozen=True)
class NotRun:
    """A command that is not run here."""

    beginning: str
    reason: str
    checked_by: str
    """What runs it for real; for services that no test starts, what checks the files they get."""


NOT_RUN = (
    NotRun("pip install", "installs packages", "Makefile"),
    NotRun("python -m venv collect", "installs packages", "tests/setup/test_distribution.py"),
    NotRun("collect/bin/pip install", "installs packages", "tests/setup/test_distribution.py"),
    NotRun("python3.11 -m venv .venv-agent", "installs packages", "Makefile"),
    NotRun(".venv-agent/bin/pip install", "installs packages", "Makefile"),
    NotRun(".venv/bin/pip install -r", "installs packages", "Makefile"),
    NotRun(".venv/bin/python -m pytest", "runs tests of the repository", "Makefile"),
    NotRun(
        ".venv/bin/python -m benchmarks.gpu.pack",
        "downloads packages",
        "tests/benchmarks/gpu/test_pack.py",
    ),
    NotRun("python3 unpack.py", "needs the pieces", "tests/benchmarks/gpu/test_pack.py"),
    NotRun("/tmp/gpu/bin/python", "needs a GPU", "tests/benchmarks/gpu/test_stages.py"),
    NotRun("ltrain policy list sums", "needs the version of a run", "tests/train/policy"),
    NotRun(
        "ltrain check my-training",
        "needs an agent that is filled in",
        "tests/end_to_end/test_init_path.py",
    ),
    NotRun("ltrain run --watch", "runs until ctrl-C", "tests/train/loop/kills/test_watch_kills.py"),
    NotRun("ltrain run farmed.toml", "needs traffic", "benchmarks/support_desk.py"),
    NotRun(
        "OPENAI_BASE_URL=http://127.0.0.1:8000/v1 opentelemetry-instrument python users.py",
        "runs until ctrl-C",
        "benchmarks/support_desk.py",
    ),
    NotRun("ltrain up", "runs until ctrl-C, on fixed ports", "tests/docs/project.py"),
    NotRun(".venv/bin/ltrain up", "runs until ctrl-C, on fixed ports", "tests/docs/project.py"),
    NotRun(
        "LTRAIN_QUERY_LIMITS=seconds=600,memory=4096 ltrain up",
        "runs until ctrl-C, on fixed ports",
        "tests/security/test_query_budget.py",
    ),
    NotRun(
        "LTRAIN_BOUND_LIMITS=minute=512,total=0 ltrain up",
        "runs until ctrl-C, on fixed ports",
        "tests/security/test_ingest_budget.py",
    ),
    NotRun(
        "HF_TOKEN=hf_... ltrain push",
        "uploads to a hub",
        "tests/transforms/exports/test_hub.py",
    ),
    NotRun("ltrain reward --push", "needs a server", "tests/transforms/annotations/test_push.py"),
    NotRun("ltrain push", "uploads to a hub", "tests/transforms/exports/test_hub.py"),
    NotRun("AGENT=codex make bench-example", "trains", "Makefile"),
    NotRun("bash warm_start.sh", "needs the programs of coding agents", "Makefile"),
    NotRun("ltrain ui", "runs until ctrl-C, on a fixed port", "tests/ui/conftest.py"),
    NotRun(
        "LTRAIN_STORE=http://127.0.0.1:64008 ltrain ui",
        "runs until ctrl-C, on a fixed port",
        "tests/ui/conftest.py",
    ),
    NotRun("ltrain demo", "trains for minutes", "Makefile"),
    NotRun("ltrain eval", "needs a model", "tests/end_to_end/test_eval.py"),
    NotRun("ltrain environment", "needs verifiers", "tests/frameworks/test_gyms.py"),
    NotRun("ltrain apo", "needs a model", "tests/train/prompts/test_command.py"),
    NotRun("ltrain rollout", "needs a model", "tests/train/rollout/test_run_tasks.py"),
    NotRun("ltrain serve", "needs a model", "tests/train/gateway/test_serve.py"),
    NotRun("ltrain worker http", "runs until ctrl-C", "tests/train/remote/test_worker.py"),
    NotRun("ltrain run ltrain.toml", "trains", "tests/end_to_end/test_two_turn.py"),
    NotRun(".venv/bin/ltrain run", "trains", "tests/end_to_end/test_two_turn.py"),
    NotRun("ltrain run no_discount.toml", "trains", "tests/end_to_end/test_two_turn.py"),
    NotRun("ltrain run gpu.toml", "trains", "tests/end_to_end/test_two_turn.py"),
    NotRun("SQL_WORKED=0", "trains", "tests/end_to_end/test_two_turn.py"),
    NotRun("RAG_TOP_K=3", "trains", "tests/end_to_end/test_two_turn.py"),
    NotRun("python tasks.py --data", "needs a public data set", "tests/examples"),
    NotRun(
        ".venv/bin/python tests/train/tiny.py", "writes a model", "tests/end_to_end/conftest.py"
    ),
    NotRun("ltrain run --once $", "trains", "tests/end_to_end/test_feedback_path.py"),
    NotRun("ray start", "starts a cluster", "tests/train/learner/test_machines.py"),
    NotRun(
        "OMP_NUM_THREADS=16 RAY_worker", "starts a cluster", "tests/train/learner/test_machines.py"
    ),
    NotRun("ltrain sft ltrain.toml", "trains", "tests/train/finetune/test_sft.py"),
    NotRun("ltrain dpo ltrain.toml", "trains", "tests/train/finetune/test_dpo.py"),
    NotRun(
        "curl http://127.0.0.1:8000/v1/chat", "needs a model", "tests/train/gateway/test_calls.py"
    ),
    NotRun("codex exec", "needs Codex and a model", "tests/train/gateway/apis/test_captured.py"),
    NotRun("OPENAI_BASE_URL=", "needs a model", "tests/end_to_end/test_feedback_path.py"),
    NotRun("python agent.py flights", "needs a model", "tests/examples/test_agent.py"),
    NotRun(
        "opentelemetry-instrument python agent.py flights",
        "needs a model",
        "tests/examples/test_agent.py",
    ),
    NotRun("sudo chown", "needs root", "tests/otel_config/test_compose.py"),
    NotRun("docker compose", "needs Docker", "tests/otel_config/test_compose.py"),
    NotRun("docker ", "needs Docker", "tests/containers/test_containers.py"),
    NotRun("curl -f http://127.0.0.1:13133", "needs Docker", "tests/otel_config/test_compose.py"),
    NotRun("kubectl", "needs a cluster", "tests/otel_config/test_kubernetes.py"),
    NotRun("otelcol-contrib", "a binary of 300 MB", "tests/otel_config/test_collector.py"),
    NotRun("clickhouse-client", "needs a server", "tests/otel_config/test_clickhouse.py"),
    NotRun(
        'ltrain sql "SELECT count() FROM otel.spans" $',
        "needs the ClickHouse of Compose",
        "tests/otel_config/test_clickhouse.py",
    ),
    NotRun(
        "ltrain import phoenix://",
        "needs a server",
        "tests/collector/sources/servers/test_recorded.py",
    ),
    NotRun(
        "ltrain import mlflow://",
        "needs a server",
        "tests/collector/sources/servers/test_recorded.py",
    ),
    NotRun(
        "ltrain import langfuse://",
        "needs a server",
        "tests/collector/sources/servers/test_apis.py",
    ),
    NotRun(
        "ltrain import langsmith://",
        "needs a server",
        "tests/collector/sources/servers/test_apis.py",
    ),
    NotRun(
        "ltrain import logfire://", "needs a server", "tests/collector/sources/servers/test_apis.py"
    ),
    NotRun("aws s3", "needs an account", "tests/collector/transfer/test_transfer.py"),
    NotRun("ltrain store migrate", "needs ClickHouse", "tests/collector/admin/test_maintenance.py"),
)
BEFORE = {
    "ltrain store restore": "ltrain store backup traces.tar",
    ". secrets/passwords.env": "otel-config/secrets.sh secrets",
    "export OTEL_EXPORTER_OTLP_ENDPOINT=https:": "otel-config/secrets.sh secrets",
}
"""By the beginning of a block's first command: what the page did in an earlier block."""
KEY = re.compile(r"\b(1a2b3c4d|c2f92fbb)\b")
OPERATORS = ("|", "&", "&&", ">", ";")
LTRAIN = re.compile(r"(?:\S*=\S* )*(?:\.venv/bin/)?ltrain ")


def declaration(command: str) -> NotRun | None:
    """Return why a command is not run; a beginning with `$` is the whole command."""
    whole = re.sub(r"\s+(#.*)?$", "", command) + " $"
    return next((each for each in NOT_RUN if whole.startswith(each.beginning)), None)


def commands() -> Iterator[tuple[Block, str]]:
    for block in BLOCKS:
        if block.language in ("bash", "console"):
            for command in block.commands:
                yield block, command


def local(command: str, project: Project) -> str:
    """Return the command with the addresses, keys and paths of this machine."""
    for printed, here in (
        ("127.0.0.1:8123", project.sql),
        ("127.0.0.1:4318", project.otlp),
        ("chdb:///new", f"chdb://{project.folder}/new"),
        (".venv/bin/ltrain", "ltrain"),
        # a busy machine answers late; each instrumentor costs a process that imports it
        ("ltrain doctor", f"{DISABLED}='*' ltrain doctor --timeout 60"),
    ):
        command = command.replace(printed, here)
    return KEY.sub(project.key_id, re.sub(r"^make ", f"make -n -C {ROOT} ", command))


def runnable(block: Block) -> list[str]:
    return [command for command in block.commands if declaration(command) is None]


@pytest.mark.sampled(30)
@parametrize("bash", "console", where=runnable)
def test_commands_run(block: Block, project: Project) -> None:
    chosen = runnable(block)
    before = [BEFORE[first] for first in BEFORE if chosen[0].startswith(first)]
    script = "\n".join(local(command, project) for command in (*before, *chosen))
    project.run("bash", "-euo", "pipefail", "-c", script)


@parametrize("sql")
def test_statements_run(block: Block, tmp_path: Path) -> None:
    with open_empty_store(tmp_path / "store") as store:
        store.command(block.text)


def test_commands_of_ltrain_can_be_parsed() -> None:
    for _, command in commands():
        if LTRAIN.match(command):
            words = shlex.split(command, comments=True)
            start = next(at for at, word in enumerate(words) if word.endswith("ltrain"))
            parse(words[start + 1 :])


def parse(words: list[str]) -> None:
    """Parse the arguments of ltrain as it does, up to a shell operator; nothing runs."""
    end = next((at for at, word in enumerate(words) if word in OPERATORS), None)
    command: Any = typer.main.get_command(app)
    arguments = words[:end]
    context = None
    while hasattr(command, "commands") and arguments and not arguments[0].startswith("-"):
        name, *arguments = arguments
        assert name in command.commands, f"ltrain has no command {name}"
        context = typer.Context(command, info_name=name, parent=context)
        command = command.commands[name]
    if not hasattr(command, "commands"):
        command.make_context(name, arguments, parent=context)


@pytest.mark.parametrize("declared", NOT_RUN, ids=lambda each: each.beginning)
def test_what_is_not_run_is_used_and_checked_elsewhere(declared: NotRun) -> None:
    assert any(declaration(command) == declared for _, command in commands())
    assert (ROOT / declared.checked_by).exists()


def test_extras_exist() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    for block, command in commands():
        for names in re.findall(r"ltrain\[([\w,-]+)\]", command):
            assert set(names.split(",")) <= project["optional-dependencies"].keys(), block.id
