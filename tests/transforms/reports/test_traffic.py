"""`ltrain traces --report`: the report on stored traces, on captures with what people have."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.otlp import open_empty_store
from typer.testing import CliRunner

from ltrain.cli import app
from ltrain_collector.store import Store
from ltrain_collector.transfer.importing import import_files
from ltrain_instrument.errors import LtrainError
from ltrain_transforms.reports import Grid, traffic_report
from ltrain_transforms.source import traffic_source

SECOND = 1_000_000_000


def span(trace: int, number: int, name: str, parent: int = 0, **more: Any) -> dict[str, Any]:
    failed = more.pop("failed", False)
    seconds = more.pop("seconds", 1)
    start = (1_772_618_400 + 100 * trace + number) * SECOND
    attributes = [
        {"key": key.replace("__", "."), "value": {"stringValue": str(value)}}
        for key, value in more.items()
    ]
    return {
        "traceId": f"{trace:032x}",
        "spanId": f"{trace:08x}{number:08x}",
        "parentSpanId": f"{trace:08x}{parent:08x}" if parent else "",
        "name": name,
        "startTimeUnixNano": str(start),
        "endTimeUnixNano": str(start + seconds * SECOND),
        "attributes": attributes,
        "status": {"code": 2, "message": "no"} if failed else {"code": 1},
    }


def execution(trace: int, question: str, score: float | None) -> Iterator[dict[str, Any]]:
    """Yield an agent that calls a tool four times with equal arguments, which fails once."""
    message = [{"role": "user", "parts": [{"type": "text", "content": question}]}]
    yield span(
        trace, 1, "agent",
        gen_ai__operation__name="invoke_agent", gen_ai__agent__name="helper", seconds=20,
        ltrain__task__id=f"t-{question}",
    )  # fmt: skip
    yield span(
        trace, 2, "chat", 1,
        gen_ai__operation__name="chat", gen_ai__request__model="m",
        gen_ai__input__messages=json.dumps(message),
        gen_ai__usage__input_tokens=10, gen_ai__usage__output_tokens=5,
    )  # fmt: skip
    for number in range(3, 7):
        yield span(
            trace, number, "execute_tool search", 1,
            gen_ai__operation__name="execute_tool", gen_ai__tool__name="search",
            gen_ai__tool__call__arguments='{"q": "x"}', failed=number == 6,
            **({"error__type": "TimeoutError"} if number == 6 else {}),
        )  # fmt: skip
    if score is not None:
        yield span(
            trace, 9, "gen_ai.evaluation.result", 1,
            gen_ai__evaluation__name="thumbs", gen_ai__evaluation__score__value=score,
        )  # fmt: skip


def write(file: Path, spans: dict[str, list[dict[str, Any]]]) -> None:
    """Write the spans of each scope as a request."""
    scoped = [{"scope": {"name": scope}, "spans": each} for scope, each in spans.items()]
    file.write_text(json.dumps({"resourceSpans": [{"resource": {}, "scopeSpans": scoped}]}))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    spans = [
        *execution(1, "one", 1.0),
        *execution(2, "one", 0.0),
        *execution(3, "two", None),
    ]
    unknown = span(3, 8, "guess", 1, acme__prompt="?", acme__completion="!")
    file = tmp_path / "spans.json"
    write(file, {"agent": spans, "acme": [unknown]})
    with open_empty_store(tmp_path / "store") as store:
        assert import_files(store, [file], lambda _: None).unreadable == 0
    return tmp_path / "store"


def grids(store: Store) -> dict[str, list[tuple[Any, ...]]]:
    source = traffic_source(store, run=None, mode=None, since=None)
    report = traffic_report(store, source)
    assert report.title == "traces of mode prod"
    return {each.title: [*each.rows] for each in report.parts if isinstance(each, Grid)}


def test_what_the_report_counts(path: Path) -> None:
    with Store.open(f"chdb://{path}") as store:
        found = grids(store)
    [agent] = found["Agents"]
    assert agent == ("helper", 3, 3, 12, 3, 30, 15, 1.0)
    assert found["Tools"] == [("search", 3, 12, 3, 0.25, 1.0, 1.0, "TimeoutError")]
    repetitions = next(rows for title, rows in found.items() if title.startswith("Repetitions"))
    assert repetitions == [("search", 3, 12, 4, f"{1:032x}")]
    assert found["Rewards"] == [("thumbs", "agent", 2, 0.5)]
    rules = {row[0]: row[2:4] for row in found["Ready rules"]}
    assert rules["tool-failed"] == (3, 3)
    [(reason, count, meaning)] = found["Not read"]
    assert (reason, count) == ("unknown_dialect", 1)
    assert "acme.completion" in meaning
    assert [row[:2] for row in found["What can be trained"]] == [
        ("reinforcement learning", 0),
        ("supervised fine-tuning", 3),
        ("preferences (DPO)", 1),  # of the task t-one, whose two executions differ
        ("tasks for rollouts", 2),
    ]


def test_the_command(path: Path, tmp_path: Path) -> None:
    arguments = ["traces", "--report", "--store", f"chdb://{path}"]
    printed = CliRunner().invoke(app, arguments)
    assert printed.exit_code == 0, printed.output
    assert "executions  3, 3 of them with a failed call" in printed.output
    assert "ltrain sft" in printed.output
    parsed = json.loads(CliRunner().invoke(app, [*arguments, "--json"]).output)
    assert parsed["Agents"][0]["LLM calls"] == 3
    page = tmp_path / "report.html"
    assert CliRunner().invoke(app, [*arguments, "--html", str(page)]).exit_code == 0
    assert "What can be trained" in page.read_text()
    wrong = CliRunner().invoke(app, [*arguments, "--errors"])
    assert (wrong.exit_code, "--errors and --all are for the list" in wrong.output) == (2, True)


def test_the_list_names_unknown_writers_of_the_selected_spans(path: Path) -> None:
    arguments = ["traces", "--store", f"chdb://{path}"]
    printed = CliRunner().invoke(app, arguments).output.splitlines()
    sentence = (
        "No dialect reads acme.completion, acme.prompt of the scope 'acme', in 1 span: "
        "declare how with [[source.dialect]] in the recipe (docs/dialects.md)."
    )
    assert printed.count(sentence) == 1
    listed = json.loads(CliRunner().invoke(app, [*arguments, "--json"]).output)
    assert listed["unread"] == [sentence]
    others = CliRunner().invoke(app, [*arguments, "--mode", "train", "--json"])
    assert json.loads(others.output)["unread"] == []


def test_each_unknown_writer_is_a_row(tmp_path: Path) -> None:
    file = tmp_path / "spans.json"
    both = {
        scope: [span(3, number, "guess", acme__prompt="?", acme__completion="!")]
        for number, scope in enumerate(("acme", "other"), 1)
    }
    write(file, both | {"agent": [*execution(7, "one", None)]})
    with open_empty_store(tmp_path / "store") as store:
        import_files(store, [file], lambda _: None)
        rows = grids(store)["Not read"]
    assert [(row[1], str(row[2]).partition(" of the ")[2][:14]) for row in rows] == [
        (1, "scope 'acme': "),
        (1, "scope 'other':"),
    ]


def test_without_a_reward_the_next_command_is_one(tmp_path: Path) -> None:
    file = tmp_path / "spans.json"
    write(file, {"agent": [*execution(7, "one", None)]})
    with open_empty_store(tmp_path / "store") as store:
        import_files(store, [file], lambda _: None)
        source = traffic_source(store, run=None, mode=None, since=None)
        report = traffic_report(store, source)
    assert next(iter(report.data["Next"])) == f"ltrain reward {f'{7:032x}'[:12]} 1"


def test_an_empty_store(tmp_path: Path) -> None:
    with open_empty_store(tmp_path / "store") as store:
        source = traffic_source(store, run=None, mode=None, since=None)
        with pytest.raises(LtrainError, match="no "):
            traffic_report(store, source)
