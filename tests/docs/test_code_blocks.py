"""Every code block of the README and docs/ is checked as far as it goes without a model.

Commands of ltrain are parsed by ltrain, their SQL runs on a real store, recipes are loaded, Python
is executed, and `make` targets, extras and files exist. The pages of which whole programs run are
tested elsewhere: `test_python.py`, `test_learner.py`, `tests/end_to_end/test_feedback_path.py`.
"""

import ast
import json
import os
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import typer
from markdown_it import MarkdownIt
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from tests.otlp import insert_otlp

from ltrain.cli import app
from ltrain_collector.store import Store
from ltrain_transforms.datasets import build
from ltrain_transforms.recipe import Recipe

ROOT = Path(__file__).parents[2]
PATTERNS = ("README.md", "CONTRIBUTING.md", "docs/*.md", "examples/*/README.md")
PAGES = sorted(page for pattern in PATTERNS for page in ROOT.glob(pattern))
SHELL = ("", "bash", "console")
"""Languages of blocks of commands; a block without one may also be output."""
RUN_ELSEWHERE = ("python.md", "learner.md", "feedback.md")
"""Pages whose Python programs another test runs as they are printed."""
NEEDS_MORE = {
    "credit.md": "its frames are made in phases of a build",
    "policies.md": "a model on disk, and a gateway",
    "rollouts.md": "a gateway",
}
"""Pages with Python that needs a running server or a model: only its imports are executed."""
NOON = 1_790_000_000_000_000_000
DATASET = "__import__('ltrain').Dataset.open(__import__('pathlib').Path('datasets/third'))"
NAMES = {
    "secret": "'s' * 32",
    "agent": "type('Agent', (), {'invoke': lambda self, question: question})()",
    "question": "'2 + 2'",
    "rollout_ids": "['r1']",
    "dataset": DATASET,
    "calls": f"{DATASET}.table('calls')",
}
"""The names that a page has explained before, as Python expressions."""
RECIPE = """
[source]
run = "demo"
[[policy]]
name = "sql"
[[reward]]
name = "answer"
evaluation = "reward"
from = "any"
"""
MINIMAL = {"policy": [{"name": "sql"}], "reward": [{"name": "a", "evaluation": "reward"}]}
LTRAIN = re.compile(r"(?:\S*=\S* )*(?:\.venv/bin/)?ltrain ")


@dataclass(frozen=True)
class Block:
    page: Path
    line: int
    language: str
    text: str

    @property
    def id(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"

    @property
    def commands(self) -> Iterator[str]:
        """The command lines of ltrain, those with a continuation joined."""
        for line in self.text.replace("\\\n", " ").splitlines():
            command = line.strip().removeprefix("$ ")
            if LTRAIN.match(command):
                yield command


def blocks() -> list[Block]:
    return [
        Block(page, token.map[0] + 1, token.info.strip(), token.content)
        for page in PAGES
        for token in MarkdownIt().parse(page.read_text())
        if token.type == "fence" and token.map
    ]


ALL = blocks()


def of(*languages: str) -> pytest.MarkDecorator:
    chosen = [block for block in ALL if block.language in languages]
    return pytest.mark.parametrize("block", chosen, ids=lambda block: block.id)


def test_every_block_has_a_language_that_is_checked() -> None:
    known = {*SHELL, "python", "toml", "json", "mermaid"}
    assert [block.id for block in ALL if block.language not in known] == []
    assert len(ALL) > 100


@of(*SHELL)
def test_commands_can_be_parsed(block: Block) -> None:
    for command in block.commands:
        words = shlex.split(command, comments=True)
        start = next(at for at, word in enumerate(words) if word.endswith("ltrain"))
        parse(words[start + 1 :])


def parse(words: list[str]) -> None:
    """Parse the arguments of ltrain as it does, up to a shell operator; nothing runs."""
    end = next((at for at, word in enumerate(words) if word in ("|", "&", "&&", ">", ";")), None)
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


@of(*SHELL)
def test_sql_runs(block: Block, project: Path) -> None:
    queries = [query for command in block.commands for query in sql_of(command)]
    if queries:
        with Store.open(f"chdb://{project}/.ltrain/store") as store:
            for query, params in queries:
                store.query(query, params)


def sql_of(command: str) -> Iterator[tuple[str, dict[str, str]]]:
    """Yield the query of an `ltrain sql` with its parameters; a file or stdin has none here."""
    words = shlex.split(command, comments=True)
    if "sql" in words[:-1] and not (query := words[words.index("sql") + 1]).startswith("-"):
        values = (words[at + 1] for at, word in enumerate(words) if word == "--param")
        yield query, dict(one.split("=", 1) for one in values)


@of(*SHELL)
def test_targets_and_extras_exist(block: Block) -> None:
    makefile = (ROOT / "Makefile").read_text()
    for target in re.findall(r"^\s*(?:\$ )?make ([\w-]+)", block.text, re.MULTILINE):
        benchmark = ROOT / "benchmarks" / f"{target.removeprefix('bench-').replace('-', '_')}.py"
        exists = benchmark.exists() if target.startswith("bench-") else f"\n{target}:" in makefile
        assert exists, f"there is no target {target}"
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]
    for names in re.findall(r"ltrain\[([\w,-]+)\]", block.text):
        assert set(names.split(",")) <= extras.keys()


@of("toml")
def test_recipes_load(block: Block) -> None:
    fields = tomllib.loads(block.text)
    declared = fields.pop("project", {}).get("entry-points", {})  # of the user's own package
    rules = [each for each in fields.get("reward", []) if "python" in each]
    assert {each["python"] for each in rules} <= declared.get("ltrain.rules", {}).keys()
    others = [each for each in fields.get("reward", []) if each not in rules]
    Recipe.model_validate({**MINIMAL, **fields, "reward": others or MINIMAL["reward"]})


def one_call() -> bytes:
    """Return a request with one LLM call of a rollout."""
    request = ExportTraceServiceRequest()
    span = request.resource_spans.add().scope_spans.add().spans.add(name="chat small")
    span.trace_id, span.span_id = b"t" * 16, b"s" * 8
    span.start_time_unix_nano, span.end_time_unix_nano = NOON, NOON + 10**6
    for key, value in (
        ("gen_ai.operation.name", "chat"),
        ("ltrain.run.id", "demo"),
        ("ltrain.rollout.id", "r1"),
        ("ltrain.mode", "train"),
        ("ltrain.wave", "3"),
    ):
        span.attributes.add(key=key).value.string_value = value
    return bytes(request.SerializeToString())


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a store of one judged rollout, a recipe and a dataset."""
    folder = tmp_path_factory.mktemp("project")
    (folder / "ltrain.toml").write_text(RECIPE)
    with Store.open(f"chdb://{folder}/.ltrain/store") as store:
        store.migrate()
        insert_otlp(store, one_call())
        build(store, Recipe.load(folder / "ltrain.toml"), folder / "datasets" / "third")
    return folder


@of("python")
def test_python_runs(block: Block, project: Path) -> None:
    tree = ast.parse(block.text, block.id)
    if block.page.name in (*RUN_ELSEWHERE, *NEEDS_MORE):
        tree.body = [one for one in tree.body if isinstance(one, ast.Import | ast.ImportFrom)]
        tree.body = [one for one in tree.body if "ltrain" in ast.unparse(one)]
    defined = [f"{name} = {value}" for name, value in NAMES.items() if name in block.text]
    done = subprocess.run(
        [sys.executable, "-c", "\n".join((*defined, ast.unparse(tree)))],
        cwd=project,
        env={
            **os.environ,
            "LTRAIN_HOME": str(project / ".ltrain"),
            "LTRAIN_STORE": f"chdb://{project}/.ltrain/store",
            "HF_HOME": str(project / "huggingface"),
        },
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr


@of("json")
def test_json_is_valid(block: Block) -> None:
    json.loads(block.text)
