"""`ltrain reward --push` to servers that answer as Phoenix and Langfuse document it."""

import json
import threading
from base64 import b64encode
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from tests.otlp import insert_otlp, open_empty_store
from tests.transforms.conftest import RECIPE, Scene
from typer.testing import CliRunner

from ltrain_collector.errors import BadSource, SourceFailed
from ltrain_collector.feedback import Feedback, to_request
from ltrain_transforms.annotations.push import push_annotations
from ltrain_transforms.cli import app
from ltrain_transforms.datasets import build
from ltrain_transforms.recipe import Recipe

Record = dict[str, Any]
IDS = ("trace_id", "span_id", "session_id")


@dataclass
class Platform:
    """Annotations that a server keeps, by what identifies them."""

    port: int = 0
    unknown: set[str] = field(default_factory=set)
    """Traces and spans that Phoenix does not have."""
    kept: dict[str, Record] = field(default_factory=dict)
    keys: set[str | None] = field(default_factory=set)
    posts: int = 0

    def answer(self, path: str, body: Record) -> tuple[int, Any]:
        self.posts += 1
        if path == "/api/public/scores":
            self.kept[body["id"]] = body
            return 200, {"id": body["id"]}
        name, _, query = path.removeprefix("/v1/").partition("_annotations?")
        assert query == "sync=true"
        ids = [each[f"{name}_id"] for each in body["data"]]
        if missing := self.unknown & {*ids}:
            return 404, {"detail": f"{name} with IDs {', '.join(missing)} do not exist."}
        self.kept |= {each["identifier"]: each for each in body["data"]}
        return 200, {"data": [{"id": str(number)} for number in range(len(ids))]}


@pytest.fixture
def platform() -> Iterator[Platform]:
    made = Platform()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            made.keys.add(self.headers.get("Authorization"))
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            status, answer = made.answer(self.path, body)
            content = json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    made.port = server.server_port
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    yield made
    server.shutdown()
    server.server_close()


@dataclass(frozen=True)
class Stored:
    dsn: str
    dataset: Path
    traces: list[str]
    call: str


@pytest.fixture
def stored(tmp_path: Path) -> Stored:
    """Two rollouts with rewards; of the first a call is judged, and feedback was withdrawn."""
    scene = Scene()
    first, second = scene.attempt("t1", 0), scene.attempt("t1", 1)
    call = first.llm()
    first.evaluate(0.5, "polite", scope="call", parent=call, explanation="It greets.")
    first.evaluate(1.0)
    second.llm(response=(6, 7))
    second.evaluate(0.0)
    first.close(), second.close()
    recipe = tmp_path / "ltrain.toml"
    recipe.write_text(RECIPE)
    with open_empty_store(tmp_path / "store") as store:
        insert_otlp(store, scene.request())
        build(store, Recipe.load(recipe), tmp_path / "dataset")
        for number, feedback in enumerate(
            (
                Feedback(rollout=first.rollout, name="thumbs", value=0),
                Feedback(rollout=first.rollout, name="thumbs", value=1, comment="Good."),
                Feedback(trace=second.trace, name="stars", value=5),
                Feedback(trace=second.trace, name="stars", withdrawn=True),
                Feedback(session="chat-7", name="thumbs", value=0),
                Feedback(session="chat-7", name="thumbs", value=1),
                Feedback(trace="f" * 32, name="thumbs", value=1),
            )
        ):
            request = to_request([feedback], 1_790_000_000_000_000_000 + number, person="ann")
            insert_otlp(store, request.SerializeToString())
    return Stored(
        f"chdb://{tmp_path}/store", tmp_path / "dataset", [first.trace, second.trace], call
    )


def run(*arguments: object) -> list[str]:
    done = CliRunner().invoke(app, ["reward", *map(str, arguments)])
    if done.exception:
        raise done.exception
    return done.output.splitlines()


def test_phoenix_gets_evaluations_once(stored: Stored, platform: Platform) -> None:
    address = f"phoenix://127.0.0.1:{platform.port}"
    lines = run("--push", address, "--store", stored.dsn)
    assert lines == [
        f"5 annotations are on {address}.",
        "left out: 1 no_trace",
        "left out: 1 withdrawn",
    ]
    first, second = stored.traces
    found = {
        (next(each[name] for name in IDS if name in each), each["name"]): (
            each["annotator_kind"],
            each["result"],
            each["metadata"],
        )
        for each in platform.kept.values()
    }
    runner = {"source": "runner"}
    assert found == {
        (stored.call, "polite"): ("CODE", {"score": 0.5, "explanation": "It greets."}, runner),
        (first, "reward"): ("CODE", {"score": 1.0}, runner),
        (second, "reward"): ("CODE", {"score": 0.0}, runner),
        (first, "thumbs"): (
            "HUMAN",
            {"score": 1.0, "explanation": "Good."},
            {"source": "person"},
        ),
        ("chat-7", "thumbs"): ("HUMAN", {"score": 1.0}, {"source": "person"}),
    }
    run("--push", address, "--store", stored.dsn)
    assert len(platform.kept) == 5
    assert platform.keys == {None}
    assert not any("trace_id" in each and "session_id" in each for each in platform.kept.values())


def test_traces_that_phoenix_does_not_have_are_counted(
    stored: Stored, platform: Platform, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PHOENIX_API_KEY", "key-1")
    platform.unknown = {stored.traces[0]}
    address = f"phoenix://127.0.0.1:{platform.port}"
    pushed, left_out = push_annotations(address, stored.dsn, "demo", None)
    assert (pushed, left_out["unknown_there"]) == (2, 1)  # feedback is of no run
    assert platform.keys == {"Bearer key-1"}
    assert push_annotations(address, stored.dsn, "absent", None) == (0, {})


def test_langfuse_gets_advantages_too(
    stored: Stored, platform: Platform, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LANGFUSE_PUBLIC_KEY", "pk")
    monkeypatch.setenv("LANGFUSE_SECRET_KEY", "sk")
    address = f"langfuse+http://127.0.0.1:{platform.port}"
    more = ("--store", stored.dsn, "--dataset", stored.dataset, "--run", "demo", "--json")
    [line] = run("--push", address, *more)
    assert json.loads(line) == {"pushed": 5, "left_out": {}}
    run("--push", address, *more)
    assert (len(platform.kept), platform.posts) == (5, 10)
    assert platform.keys == {f"Basic {b64encode(b'pk:sk').decode()}"}
    [polite] = [each for each in platform.kept.values() if each["name"] == "polite"]
    assert polite == {
        "id": polite["id"],
        "traceId": stored.traces[0],
        "observationId": stored.call,
        "name": "polite",
        "value": 0.5,
        "dataType": "NUMERIC",
        "comment": "It greets.",
    }
    advantages = [each for each in platform.kept.values() if each["name"] == "ltrain.advantage"]
    assert {(each["traceId"], each["value"] > 0) for each in advantages} == {
        (stored.traces[0], True),
        (stored.traces[1], False),
    }


def test_mistakes_are_sentences(stored: Stored, platform: Platform) -> None:
    with pytest.raises(BadSource, match="Write langfuse://HOST or phoenix://HOST"):
        run("--push", "jaeger://127.0.0.1", "--store", stored.dsn)
    push = ("--push", "phoenix://127.0.0.1")
    for arguments in ((*push, "3f2a"), (), ("3f2a", "1", "--run", "demo"), (*push, "--withdraw")):
        with pytest.raises(SystemExit):
            run(*arguments)
    with pytest.raises(SourceFailed, match="does not answer"):
        run("--push", "phoenix://127.0.0.1:9", "--store", stored.dsn)
