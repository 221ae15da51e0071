"""The retrieval example: generated pages, MuSiQue's files, reward, and the traced agent.

The agent runs in its environment with its framework's own instrumentation; the model is a server of
the tests, and so are the embeddings.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from string import ascii_lowercase
from typing import TYPE_CHECKING

import pytest
from tests.examples.example_module import load_module
from tests.frameworks.expected import describe_calls

from ltrain_train.policy import renders_tools
from ltrain_train.rollout import load_tasks
from ltrain_transforms.recipe import Recipe

if TYPE_CHECKING:
    from tests.frameworks.conftest import Run
    from tests.frameworks.model import Model

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "examples" / "rag"
PYTHON = ROOT / ".venv-examples" / "bin" / "python"
BRIDGE = {"title": "Falcon Bridge", "text": "Nora Hale designed the Falcon Bridge."}
WELL = {"title": "Amber Well", "text": "The Amber Well is in Elmford."}
STEP = {"id": 0, "question": "Who designed it?", "answer": "Nora", "paragraph_support_idx": 0}
LINE = {
    "id": "2hop__1_2",
    "paragraphs": [
        {"idx": 0, "title": "A", "paragraph_text": "Nora designed it.", "is_supporting": True},
        {"idx": 1, "title": "B", "paragraph_text": "Nora is from Oslo.", "is_supporting": True},
    ],
    "question": "Where is its designer from?",
    "question_decomposition": [STEP, STEP | {"id": 1, "paragraph_support_idx": 1}],
    "answer": "Oslo",
    "answer_aliases": ["Oslo, Norway"],
    "answerable": True,
}


@pytest.fixture(autouse=True)
def on_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(FOLDER))


load = partial(load_module, FOLDER)


def write(path: Path, *rows: object) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def run_python(*arguments: object, **environ: str) -> subprocess.CompletedProcess[str]:
    """Run the examples' Python in the folder, without any tracing."""
    variables = {"PATH": "/usr/bin:/bin", **environ}
    return subprocess.run(
        [str(PYTHON), *map(str, arguments)],
        cwd=FOLDER,
        env=variables,
        capture_output=True,
        text=True,
    )


def test_the_files_are_those_of_the_generator(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    load("tasks").main(["--out", str(tmp_path)])
    assert [line.rsplit(": ")[-1] for line in capsys.readouterr().out.splitlines()] == [
        *("600 lines", "288 lines", "192 lines")
    ]
    for name in ("pages", "train", "val"):
        assert (tmp_path / f"{name}.jsonl").read_text() == (FOLDER / f"{name}.jsonl").read_text()
    for name, one, two in (("train", 192, 96), ("val", 128, 64)):
        domains = [task.domain for task in load_tasks(FOLDER / f"{name}.jsonl")]
        assert (domains.count("one_hop"), domains.count("two_hop")) == (one, two)


@pytest.mark.parametrize("seed", range(3))
def test_no_entity_of_validation_is_in_training(seed: int) -> None:
    worlds = load("generated").worlds(seed)
    names = [
        {*(town.name for town in world.towns), *(person.name for person in world.people)}
        | {building.name for building in world.buildings}
        for world in worlds
    ]
    assert [len(each) for each in names] == [300, 300]
    assert names[0] & names[1] == set()
    for world, others in zip(worlds, reversed(names), strict=True):
        texts = " ".join(page.text for page in world.pages)
        assert [name for name in others if name in texts] == []


def test_each_question_is_answered_by_its_supporting_paragraphs() -> None:
    for task in [*load_tasks(FOLDER / "train.jsonl"), *load_tasks(FOLDER / "val.jsonl")]:
        fields = task.further_fields
        steps = fields["question_decomposition"]
        support = [fields["paragraphs"][step["paragraph_support_idx"]] for step in steps]
        for step, paragraph in zip(steps, support, strict=True):
            assert paragraph["is_supporting"] and step["answer"] in paragraph["paragraph_text"]
        assert steps[-1]["answer"] == fields["answer"]
        assert sum(each["is_supporting"] for each in fields["paragraphs"]) == len(steps)
        assert task.input == fields["question"]
        if len(steps) == 2:  # the first page does not have the answer, the second one needs the hop
            assert fields["answer"] not in support[0]["paragraph_text"]
            assert support[1]["title"] == steps[0]["answer"]


def test_files_of_musique_become_tasks(tmp_path: Path) -> None:
    unanswerable = LINE | {
        "id": "2hop__3_4",
        "answerable": False,
        "question_decomposition": [STEP | {"paragraph_support_idx": None}],
    }
    data = write(tmp_path / "musique.jsonl", LINE, unanswerable)
    dump = write(tmp_path / "wikipedia.jsonl", BRIDGE | {"id": 1}, WELL)
    main = load("tasks").main
    questions = ["--data", str(data), "--validation", str(data), "--out", str(tmp_path)]
    main(questions)
    (task,) = load_tasks(tmp_path / "train.jsonl")
    assert (task.id, task.domain, task.input) == ("2hop__1_2", "two_hop", LINE["question"])
    assert {key: task.further_fields[key] for key in LINE if key != "id"} == {
        key: value for key, value in LINE.items() if key != "id"
    }
    pages = tmp_path / "pages.jsonl"
    assert [json.loads(line) for line in pages.read_text().splitlines()] == [
        {"title": "A", "text": "Nora designed it."},
        {"title": "B", "text": "Nora is from Oslo."},
    ]
    main([*questions, "--pages", str(dump)])
    assert [json.loads(line) for line in pages.read_text().splitlines()] == [BRIDGE, WELL]


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("{", r"data\.jsonl, line 2: Expecting property name"),
        ("[]", r"data\.jsonl, line 2 is not an object\. A line is one JSON object\."),
        (LINE | {"answer": 3}, r"line 2: the field `answer` is 3, not a text\."),
        (LINE | {"answerable": "yes"}, r"the field `answerable` is \"yes\", not true or false"),
        (LINE | {"answer_aliases": [1]}, r"`answer_aliases` has an alias that is not a text"),
        (LINE | {"paragraphs": [3]}, r"the field `paragraphs\[0\]` is not an object"),
        (
            LINE | {"paragraphs": [{"idx": 0, "title": "A", "is_supporting": True}]},
            r"the field `paragraphs\[0\]\.paragraph_text` is missing",
        ),
        (
            LINE | {"question_decomposition": [STEP, STEP | {"id": True}]},
            r"the field `question_decomposition\[1\]\.id` is true, not a number",
        ),
    ],
)
def test_a_bad_question_is_refused_with_its_line_and_field(
    line: object, sentence: str, tmp_path: Path
) -> None:
    text = line if isinstance(line, str) else json.dumps(line)
    data = tmp_path / "data.jsonl"
    data.write_text(f"{json.dumps(LINE)}\n{text}\n")
    musique = load("musique")
    with pytest.raises(musique.BadData, match=sentence):
        musique.load_questions(data)


def test_missing_and_empty_files_are_refused(tmp_path: Path) -> None:
    musique = load("musique")
    with pytest.raises(musique.BadData, match=r"Cannot read .*Name a JSONL file"):
        musique.load_questions(tmp_path / "none.jsonl")
    with pytest.raises(musique.BadData, match="has no questions"):
        musique.load_questions(write(tmp_path / "empty.jsonl"))
    page = write(tmp_path / "pages.jsonl", BRIDGE, {"title": "B"})
    with pytest.raises(musique.BadData, match=r"pages\.jsonl, line 2: the field `text` is missing"):
        musique.load_pages(page)
    with pytest.raises(SystemExit) as ended:
        load("tasks").main(["--data", str(page), "--validation", str(page), "--out", str(tmp_path)])
    assert str(ended.value) == f"{page}, line 1: the field `answer_aliases` is missing."


@pytest.mark.parametrize(
    ("output", "f1", "form"),
    [
        ("<answer>Nora Hale</answer>", 1.0, 1.0),
        ("So: <answer>the nora-hale.</answer>", 0.0, 1.0),
        ("<answer>The  Nora, Hale!</answer>", 1.0, 1.0),
        ("<answer>N. Hale</answer>", 1.0, 1.0),  # an alias
        ("<answer>Hale</answer>", 2 / 3, 1.0),
        ("<answer>Nora Hale Nora Hale</answer>", 2 / 3, 1.0),
        ("<answer>the</answer>", 0.0, 1.0),
        ("<answer> </answer>", 0.0, 0.0),
        ("<answer>Nora Hale</answer><answer>Ben</answer>", 0.0, 0.0),
        ("Nora Hale", 0.0, 0.0),
        ("<answer>Nora Hale", 0.0, 0.0),
        ("", 0.0, 0.0),
    ],
)
def test_the_reward_is_nine_parts_f1_and_one_part_format(
    output: str, f1: float, form: float
) -> None:
    task = {"answer": "Nora Hale", "answer_aliases": ["N. Hale"]}
    result = {"output": output, "queries": ["Nora"], "error": None}
    assert load("reward").score(task, result) == {
        "reward": 0.9 * f1 + 0.1 * form,
        "f1": f1,
        "format": form,
        "searched": 1.0,
    }


def test_yes_and_no_are_right_as_a_whole() -> None:
    f1 = load("reward").f1
    assert (f1("Yes.", "yes"), f1("yes it is", "yes"), f1("no", "no way")) == (1.0, 0.0, 0.0)


CALLS = [
    "rag ok tool_calls 7+5: retrieve(query=Falcon Bridge)",
    "  rag ok retrieve(query=Falcon Bridge): Falcon Bridge: Nora Hale designed the Falcon Bridge.",
    "rag ok tool_calls 7+5: retrieve(query=unicorns)",
    "  rag ok retrieve(query=unicorns): No page was found.",
    "rag ok stop 7+5: So <answer>Nora Hale</answer>",
]
WRITTEN = [
    ("tool.retrieve.arguments", {"query": "Falcon Bridge"}, "rag"),
    ("tool.retrieve.result", "Falcon Bridge: Nora Hale designed the Falcon Bridge.", "retrieve"),
    ("tool.retrieve.arguments", {"query": "unicorns"}, "rag"),
    ("tool.retrieve.result", "No page was found.", "retrieve"),
    ("rag.output", "So <answer>Nora Hale</answer>", "rag"),
    ("answer", "So <answer>Nora Hale</answer>", "rag"),
]
"""The semantic variables that the calls of the run write, each with its call."""
QUESTION = "Who designed the Falcon Bridge?"
PLAN = "[[retrieve(query=Falcon Bridge); retrieve(query=unicorns); So <answer>Nora Hale</answer>]]"


def test_the_traces_of_a_run_are_exact(run: Run, tmp_path: Path) -> None:
    pages = write(tmp_path / "pages.jsonl", WELL, BRIDGE)
    result = run("examples", str(FOLDER / "agent"), f"{QUESTION} {PLAN}", RAG_PAGES=str(pages))
    assert (result.exit_code, result.stderr) == (0, "")
    assert json.loads(result.stdout) == {
        "output": "So <answer>Nora Hale</answer>",
        "queries": ["Falcon Bridge", "unicorns"],
        "error": None,
    }
    assert describe_calls(result) == CALLS
    by_name = {row["call_id"]: row["name"] or "rag" for row in result.calls.to_dicts()}
    states = [
        (row["variable"], json.loads(row["value"]), by_name.get(row["written_by"]))
        for row in result.states.sort("t", maintain_order=True).to_dicts()
    ]
    assert [state for state in states if state[2]] == WRITTEN
    assert ("input", f"{QUESTION} {PLAN}", None) in states
    (execution,) = result.executions.to_dicts()
    assert (execution["llm_calls"], execution["tool_calls"], execution["complete"]) == (3, 2, True)
    requests = [each.body for each in result.model_requests]
    assert [len(body["messages"]) for body in requests] == [14, 16, 18]
    assert {body["temperature"] for body in requests} == {0}
    assert [tool["function"]["name"] for tool in requests[0]["tools"]] == ["retrieve"]


SOLVE = """\
import asyncio, json, sys
from types import SimpleNamespace
import agent

async def main():
    llm = SimpleNamespace(base_url=sys.argv[1], api_key="none", model="fake")
    tasks = [{"input": question} for question in sys.argv[2:]]
    for result in await asyncio.gather(*(agent.solve(task, llm) for task in tasks)):
        print(json.dumps([result["output"], result["queries"], result["error"]]))

asyncio.run(main())
"""


@pytest.mark.nightly
def test_a_model_that_searches_on_or_calls_wrongly_has_no_output(model: Model) -> None:
    on = "; ".join(f"retrieve(query={word})" for word in ("amber", "cedar", "ember", "onyx"))
    plans = [f"[[{on}; It]]", "[[fetch(query=amber)]]", "[[retrieve(word=amber); It]]"]
    done = run_python("-c", SOLVE, model.url, *plans, OPENAI_AGENTS_DISABLE_TRACING="1")
    assert (done.returncode, done.stderr) == (0, "")
    assert list(map(json.loads, done.stdout.splitlines())) == [
        ["", ["amber", "cedar", "ember", "onyx"], "Max turns (4) exceeded"],
        ["", [], "Tool fetch not found in agent rag"],
        ["It", [], None],
    ]


@pytest.fixture
def teacher() -> Iterator[str]:
    """Start the server in place of a larger model and yield its URL."""
    module = load("teacher")
    server = module.make_server(module.read_plans(FOLDER / "train.jsonl"), 0)
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/v1"
    server.shutdown()
    server.server_close()


def test_the_teacher_answers_training_questions_by_the_pages(teacher: str) -> None:
    train = load_tasks(FOLDER / "train.jsonl")
    domains = ("one_hop", "two_hop")
    chosen = [next(task for task in train if task.domain == domain) for domain in domains]
    questions = [task.input for task in chosen]
    environ = {"OPENAI_AGENTS_DISABLE_TRACING": "1"}
    done = run_python("-c", SOLVE, teacher, *questions, "Who is the queen?", **environ)
    assert (done.returncode, done.stderr) == (0, "")
    *answers, unknown = map(json.loads, done.stdout.splitlines())
    for task, (output, queries, error) in zip(chosen, answers, strict=True):
        fields = task.further_fields
        supports = [step["paragraph_support_idx"] for step in fields["question_decomposition"]]
        assert queries == [fields["paragraphs"][index]["title"] for index in supports]
        assert (output, error) == (f"<answer>{fields['answer']}</answer>", None)
    assert unknown == ["I do not know.", [], None]


def test_the_teacher_refuses_a_file_that_is_no_data(tmp_path: Path) -> None:
    done = run_python("teacher.py", write(tmp_path / "data.jsonl", LINE | {"answer": 3}))
    assert done.stderr.endswith("line 1: the field `answer` is 3, not a text.\n")
    assert done.returncode == 1


class Embeddings(BaseHTTPRequestHandler):
    """An embeddings endpoint: a text's vector counts its letters."""

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        rows = [
            {
                "object": "embedding",
                "index": index,
                "embedding": [text.lower().count(letter) for letter in ascii_lowercase],
            }
            for index, text in enumerate(body["input"])
        ]
        usage = {"prompt_tokens": 1, "total_tokens": 1}
        answer = {"object": "list", "model": body["model"], "data": rows, "usage": usage}
        payload = json.dumps(answer).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(payload)))
        self.end_headers()
        self.wfile.write(payload)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def embeddings() -> Iterator[str]:
    """Start the embeddings endpoint and yield its URL."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Embeddings)
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/v1"
    server.shutdown()
    server.server_close()


SEARCHES = """\
import json, sys
from retrieval import open_index
index = open_index()
print(json.dumps([[page.title for page in index.search(query, 2)] for query in sys.argv[1:]]))
"""


def test_words_are_searched_or_meanings(tmp_path: Path, embeddings: str) -> None:
    pages = str(write(tmp_path / "pages.jsonl", WELL, BRIDGE, {"title": "Zzz", "text": "Zzzz"}))
    queries = ("falcon", "amber bridge", "", "zz")
    for environ, expected in (
        ({}, [["Falcon Bridge"], ["Amber Well", "Falcon Bridge"], [], []]),
        (
            {"RAG_EMBEDDINGS_URL": embeddings},
            [
                *(["Falcon Bridge", "Amber Well"], ["Amber Well", "Falcon Bridge"]),
                *(["Amber Well", "Falcon Bridge"], ["Zzz", "Amber Well"]),
            ],
        ),
    ):
        done = run_python("-c", SEARCHES, *queries, RAG_PAGES=pages, **environ)
        assert (done.stderr, json.loads(done.stdout or "0")) == ("", expected)


def test_an_empty_index_is_refused(tmp_path: Path) -> None:
    pages = write(tmp_path / "pages.jsonl")
    done = run_python("-c", SEARCHES, "falcon", RAG_PAGES=str(pages))
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == (
        f"musique.BadData: {pages} has no pages, so there is nothing to search. Write it with "
        "`python tasks.py`, or name a JSONL file of "
        '{"title": "...", "text": "..."} with RAG_PAGES.'
    )


def test_the_chat_template_has_tools() -> None:
    assert renders_tools(FOLDER, str(FOLDER / "smollm2_tools.jinja"))


def test_the_warm_start_stops_its_servers(tmp_path: Path) -> None:
    """A shell starts servers in the background with SIGINT ignored, which some programs keep."""
    sleep = f"exec {sys.executable} -c 'import time; time.sleep(600)'"
    for name, line in {
        "python": sleep,
        "ltrain": f'case "$1" in up|serve) {sleep};; esac',
        "curl": "echo '\"ready\"'",
    }.items():
        program = tmp_path / name
        program.write_text(f"#!/usr/bin/env bash\n{line}\n")
        program.chmod(0o755)
    environment = os.environ | {"PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"}
    command = ["bash", str(FOLDER / "warm_start.sh"), str(tmp_path)]
    subprocess.run(command, env=environment, check=True, timeout=60)


def test_the_recipes_are_valid() -> None:
    warm_start = Recipe.load(FOLDER / "warm_start.toml").policy[0]
    assert (warm_start.agents, warm_start.imitates) == (("rag",), ("teacher",))
    for name in ("ltrain", "gpu"):
        recipe = Recipe.load(FOLDER / f"{name}.toml")
        assert recipe.rollout is not None
        assert recipe.policy[0].agents == ("rag",)
        assert (FOLDER / recipe.rollout.tasks).exists()
