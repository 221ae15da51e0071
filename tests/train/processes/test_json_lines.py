"""JSON lines between a process and its child."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from ltrain_train.processes import Child, Children, Command, JsonChild

ECHO = """
import sys
from ltrain_train.processes import JsonPipes
pipes = JsonPipes(int(sys.argv[2]), int(sys.argv[1]))
for request in pipes.requests():
    print("for the log", flush=True)
    pipes.send(request)
"""


def started(children: Children, log: Path, code: str = ECHO) -> JsonChild:
    def start(*pipes: int) -> Child:
        argv = [sys.executable, "-c", code, *map(str, pipes)]
        return children.start("echo", Command(argv=argv, log=log, pass_fds=pipes))

    return JsonChild(start)


def test_each_request_has_its_answer_and_the_output_is_in_the_log(tmp_path: Path) -> None:
    log = tmp_path / "log"
    requests: list[dict[str, Any]] = [{"text": "a\nb"}, {"long": "x" * (3 << 20)}, {"number": 1.5}]
    with Children() as children:
        child = started(children, log)
        assert not child.poll(0)
        for request in requests:
            child.send(request)
            assert json.loads(child.receive()) == request
        child.end_requests()
        assert list(child.receive_all()) == []
        assert child.process.wait(20) == 0
        child.close()
    assert log.read_text() == "for the log\n" * 3


def test_a_child_that_dies_is_an_end_of_the_answers(tmp_path: Path) -> None:
    with Children() as children:
        child = started(children, tmp_path / "log", "raise SystemExit(3)")
        with pytest.raises(EOFError, match="echo has closed its pipe"):
            child.receive()
        assert child.process.wait(20) == 3
        with pytest.raises(BrokenPipeError):
            child.send({"do": "start"})
        child.close()
