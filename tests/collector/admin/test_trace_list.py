"""`ltrain traces` on a real store."""

import json
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
from rich.console import Console
from tests.otlp import insert_otlp, open_empty_store

from ltrain_collector.admin import TraceFilter, find_line, list_traces, read_lines
from ltrain_collector.admin.trace_list import _table
from ltrain_collector.admin.trace_query import Line
from ltrain_collector.errors import BadTime
from ltrain_collector.feedback import Feedback, to_request
from ltrain_collector.store import Store

NOON = 1_790_000_000_000_000_000
SECOND = 10**9
CHAT = {
    "gen_ai__operation__name": "chat",
    "gen_ai__request__model": "small",
    "gen_ai__usage__input_tokens": "10",
    "gen_ai__usage__output_tokens": "2",
    "llm__token_count__prompt": "10",
    "llm__token_count__completion": "2",
    "gen_ai__agent__name": "desk",
}
TOOL = {"gen_ai__operation__name": "execute_tool", "gen_ai__tool__name": "search"}
TRACE = f"{7:032x}"


@pytest.fixture
def address(tmp_path: Path) -> Iterator[str]:
    open_empty_store(tmp_path / "store").close()
    yield f"chdb://{tmp_path}/store"


@pytest.fixture
def filled(address: str, request_of: Callable[..., bytes]) -> str:
    """A rollout with two calls, recorded by two instrumentations, then one request of a session."""
    rollout = {"ltrain__rollout__id": "r1", "ltrain__run__id": "desk", "ltrain__mode": "train"}
    later = NOON + 60 * SECOND
    with Store.open(address) as store:
        for scope, first in (("openai", 1), ("langchain", 11)):
            calls = [(1, first), (1, first + 1)]
            insert_otlp(store, request_of(*calls, scope=scope, start=NOON, **CHAT, **rollout))
        insert_otlp(store, request_of((1, 21), scope="langchain", start=NOON, **TOOL, **rollout))
        session = {"session__id": "chat-7"}
        insert_otlp(store, request_of((7, 31), start=later, **CHAT, **session))
        thumbs = [Feedback(trace=TRACE, name="thumbs", value=value) for value in (1.0, 0.0)]
        for number, thumb in enumerate(thumbs):
            body = to_request([thumb], later + number * SECOND).SerializeToString()
            insert_otlp(store, body)
    return address


def listed(
    capsys: pytest.CaptureFixture[str], address: str, **options: object
) -> dict[str, object]:
    with Store.open(address) as store:
        list_traces(store, TraceFilter(**options), 20, as_json=True)  # type: ignore[arg-type]
    report: dict[str, object] = json.loads(capsys.readouterr().out)
    return report


def test_rollouts_and_traces_are_listed(filled: str, capsys: pytest.CaptureFixture[str]) -> None:
    report = listed(capsys, filled)
    common = {"agents": ["desk"], "errors": 0, "seconds": 1.0}
    assert report["traces"] == [
        {
            "started": "2026-09-21 14:14:20+00:00",
            **{"kind": "trace", "id": TRACE, "session": "chat-7", "run": "", "mode": ""},
            **{"llm_calls": 1, "tool_calls": 0, "tokens": 12, "rewards": {"thumbs": "0"}},
            **common,
        },
        {
            "started": "2026-09-21 14:13:20+00:00",
            **{"kind": "rollout", "id": "r1", "session": "", "run": "desk", "mode": "train"},
            **{"llm_calls": 2, "tool_calls": 1, "tokens": 24, "rewards": {}},
            **common,
        },
    ]
    assert report["totals"] == {
        **{
            "units": 2,
            "others": 0,
            "sessions": 1,
            "llm_calls": 3,
            "models": ["small"],
            "tokens": 36,
        },
        **{"tool_calls": 1, "tools": ["search"], "errors": 0},
    }


def test_eighty_columns_lose_nothing() -> None:
    line = Line(
        latest=0,
        started=datetime(2026, 11, 25, 3, 13, 59, tzinfo=UTC), kind="rollout", id="bb3ea09d2e31f",
        session="", run="eval-tasks", mode="train", agents=["writer", "critic"], llm_calls=123,
        tool_calls=12, tokens=987654, errors=3, seconds=123.45, rewards={"helpful": "0.75"},
    )  # fmt: skip
    console = Console(width=80)
    with console.capture() as captured:
        console.print(_table([line]))
    rows = captured.get().splitlines()
    assert max(map(len, rows)) <= 80
    printed = Counter("".join(rows).replace(" ", ""))
    cells = "11-2503:13:59 bb3ea09d2e31 eval-tasks train writer,critic 123 12 987654 3 123.45"
    names = "started id run mode agents llm tools tokens err s reward"
    assert printed == Counter(f"{names} {cells} helpful0.75".replace(" ", ""))


@pytest.mark.parametrize(
    "attributes",
    [
        {"openinference__span__kind": "LLM"},
        {"llm__request__type": "completion"},
        {"langsmith__span__kind": "llm"},
        {"langfuse__observation__type": "generation"},
        {"agentops__span__kind": "llm"},
        {"ai__operationId": "ai.streamText.doStream"},
    ],
)
def test_an_llm_call_of_each_dialect_is_counted(
    address: str,
    request_of: Callable[..., bytes],
    capsys: pytest.CaptureFixture[str],
    attributes: dict[str, str],
) -> None:
    with Store.open(address) as store:
        insert_otlp(store, request_of((1, 1), start=NOON, **attributes))
        embedding = {"llm__request__type": "embedding", "ai__operationId": "ai.embed.doEmbed"}
        insert_otlp(store, request_of((1, 2), start=NOON, **embedding))
    assert listed(capsys, address)["totals"]["llm_calls"] == 1  # type: ignore[index]


@pytest.mark.parametrize(
    "attributes",
    [
        {"gen_ai__operation__name": "execute_tool", "gen_ai__tool__name": "search"},
        {"openinference__span__kind": "TOOL", "tool__name": "search"},
        {"traceloop__span__kind": "tool", "name": "search.tool"},
        {"ai__operationId": "ai.toolCall", "ai__toolCall__name": "search"},
    ],
)
def test_a_tool_of_each_dialect_is_named(
    address: str,
    request_of: Callable[..., bytes],
    capsys: pytest.CaptureFixture[str],
    attributes: dict[str, str],
) -> None:
    with Store.open(address) as store:
        insert_otlp(store, request_of((1, 1), start=NOON, **attributes))
    totals = listed(capsys, address)["totals"]
    assert (totals["tool_calls"], totals["tools"]) == (1, ["search"])  # type: ignore[index]


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("options", "ids"),
    [
        ({"run": "desk"}, ["r1"]),
        ({"mode": "train"}, ["r1"]),
        ({"mode": "prod"}, [TRACE]),
        ({"since": "2026-09-21T14:14:00Z"}, [TRACE]),
        ({"errors": True}, []),
    ],
    ids=["run", "train", "prod", "since", "errors"],
)
def test_options_select(
    filled: str, capsys: pytest.CaptureFixture[str], options: dict[str, object], ids: list[str]
) -> None:
    traces = listed(capsys, filled, **options)["traces"]
    assert isinstance(traces, list)
    assert [each["id"] for each in traces] == ids


def test_the_table_names_the_next_commands(filled: str, capsys: pytest.CaptureFixture[str]) -> None:
    with Store.open(filled) as store:
        list_traces(store, TraceFilter(), 1, as_json=False)
    printed = capsys.readouterr().out
    assert " desk " in printed and "r1" not in printed and "run" not in printed.splitlines()[0]
    assert "session" in printed.splitlines()[0]
    assert "chat-7" in printed
    assert "2 rollouts and traces, 1 session; 3 LLM calls of 1 model with 36 tokens" in printed
    assert f"Next: ltrain show {TRACE[:12]}" in printed and "ltrain init" in printed


def test_an_empty_store_says_how_to_get_traces(
    address: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with Store.open(address) as store:
        list_traces(store, TraceFilter(), 20, as_json=False)
    assert "No traces yet." in (printed := capsys.readouterr().out)
    assert "opentelemetry-instrument python agent.py" in printed
    with Store.open(address) as store:
        list_traces(store, TraceFilter(run="x"), 20, as_json=False)
    assert "No trace matches these options" in capsys.readouterr().out


def test_traces_without_a_call_say_so(
    address: str, request_of: Callable[..., bytes], capsys: pytest.CaptureFixture[str]
) -> None:
    with Store.open(address) as store:
        insert_otlp(store, request_of((1, 1), name="GET /"))
    with Store.open(address) as store:
        list_traces(store, TraceFilter(), 20, as_json=False)
    assert "1 trace, none with an LLM call (--all lists them)" in capsys.readouterr().out
    traces = listed(capsys, address, without_calls=True)["traces"]
    assert isinstance(traces, list) and [each["llm_calls"] for each in traces] == [0]


def test_a_time_must_be_one(filled: str) -> None:
    with Store.open(filled) as store, pytest.raises(BadTime, match="'yesterday' is no ISO 8601"):
        list_traces(store, TraceFilter(since="yesterday"), 20, as_json=False)


def ids(lines: list[Line]) -> list[str]:
    return [line.id for line in lines]


@pytest.fixture
def five(address: str, request_of: Callable[..., bytes]) -> Iterator[Store]:
    """Five rollouts of two waves; the last two began at the same time."""
    with Store.open(address) as store:
        for number, start in enumerate((0, 1, 2, 3, 3)):
            rollout = {
                "ltrain__rollout__id": f"r{number}",
                "ltrain__run__id": "desk",
                "ltrain__wave": str(number % 2),
                "ltrain__task__id": f"t{number % 3}",
                "gen_ai__output__messages": f"Answer {number}",
            }
            span = (number + 1, number + 1)
            insert_otlp(store, request_of(span, start=NOON + start * SECOND, **CHAT, **rollout))
        yield store


@pytest.mark.nightly
def test_pages_of_a_list_meet(five: Store) -> None:
    everything = read_lines(five, TraceFilter(), 10)
    assert ids(everything) == ["r3", "r4", "r2", "r1", "r0"]
    for size in (1, 2, 3):
        forwards = list[str]()
        page = read_lines(five, TraceFilter(), size)
        while page:
            forwards += ids(page)
            last = page
            page = read_lines(five, TraceFilter(), size, older_than=page[-1].position)
        assert forwards == ids(everything)
        backwards = ids(last)
        while page := read_lines(five, TraceFilter(), size, newer_than=last[0].position):
            backwards, last = ids(page) + backwards, page
        assert backwards == ids(everything)


def test_a_list_by_wave_task_and_text(five: Store) -> None:
    assert ids(read_lines(five, TraceFilter(wave=1), 10)) == ["r3", "r1"]
    assert ids(read_lines(five, TraceFilter(wave=0), 10)) == ["r4", "r2", "r0"]
    assert ids(read_lines(five, TraceFilter(task="t0"), 10)) == ["r3", "r0"]
    assert ids(read_lines(five, TraceFilter(text="ANSWER 2"), 10)) == ["r2"]
    assert ids(read_lines(five, TraceFilter(text="nowhere"), 10)) == []


def test_a_line_is_found_if_the_filter_selects_it(five: Store) -> None:
    line = find_line(five, TraceFilter(wave=1), "r3")
    assert line is not None and line.latest == NOON + 3 * SECOND
    assert find_line(five, TraceFilter(wave=0), "r3") is None
    assert find_line(five, TraceFilter(), "r9") is None
