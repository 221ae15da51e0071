"""`ltrain push` with Hugging Face's real client, to an HTTP server with the hub's API."""

import base64
import json
import os
import re
import subprocess
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from tests.fork_server import ltrain_command
from tests.transforms.exports.conftest import Talks, question

from ltrain_transforms.datasets import Dataset
from ltrain_transforms.exports import ExportOptions, export_dataset

REPOSITORY = "team/chats"


@dataclass
class Hub:
    """The repositories and the files of a hub."""

    url: str = ""
    private: dict[str, bool] = field(default_factory=dict)
    files: dict[str, bytes] = field(default_factory=dict)
    keys: set[str] = field(default_factory=set)
    may_write: bool = True

    def answer(self, path: str, body: bytes) -> tuple[int, Any]:
        if path == "/api/repos/create":
            request = json.loads(body)
            if not self.may_write:
                return 403, {"error": "You don't have the rights to create a dataset."}
            assert request["type"] == "dataset"
            name = f"{request.get('organization')}/{request['name']}"
            exists = name in self.private
            self.private.setdefault(name, request["visibility"] == "private")
            return (409 if exists else 200), {"url": f"{self.url}/datasets/{name}"}
        if path.endswith("/preupload/main"):
            files = json.loads(body)["files"]
            mode = {"uploadMode": "regular", "shouldIgnore": False}
            modes = [{"path": file["path"], **mode} for file in files]
            return 200, {"files": modes}
        if path.endswith("/commit/main"):
            for entry in map(json.loads, body.splitlines()):
                if entry["key"] == "file":
                    file = entry["value"]
                    self.files[file["path"]] = base64.b64decode(file["content"])
            commit = f"{self.url}/datasets/{REPOSITORY}/commit/{'1' * 40}"
            return 200, {"commitOid": "1" * 40, "commitUrl": commit, "success": True}
        match = re.fullmatch(r"/api/datasets/([^/]+/[^/]+)(/revision/main)?", path)
        if match and match[1] in self.private:
            return 200, {"id": match[1], "private": self.private[match[1]], "sha": "0" * 40}
        if path == "/api/validate-yaml":
            return 200, {"errors": [], "warnings": []}
        return 404, {"error": f"There is no {path}."}


@pytest.fixture
def hub() -> Iterator[Hub]:
    made = Hub()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            made.keys.add(self.headers.get("Authorization", ""))
            status, answer = made.answer(self.path.partition("?")[0], body)
            content = json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        do_GET = do_POST

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    made.url = f"http://127.0.0.1:{server.server_port}"
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    yield made
    server.shutdown()
    server.server_close()


@pytest.fixture
def folder(talks: Talks, built: Callable[..., Dataset], tmp_path: Path) -> Path:
    talk = talks("t1", 0, *question("1 + 1?"))
    talk.answers("2")
    talk.ends(1.0)
    export_dataset(built(), "hf", ExportOptions(), tmp_path / "chats")
    return tmp_path / "chats"


def push(hub: Hub, *arguments: object, token: str = "hf_secret") -> tuple[int, str]:
    done = subprocess.run(
        [ltrain_command(), "push", *map(str, arguments)],
        env={**os.environ, "HF_ENDPOINT": hub.url, "HF_TOKEN": token, "NO_COLOR": "1"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert "hf_secret" not in done.stdout + done.stderr
    return done.returncode, done.stdout + done.stderr


def test_a_folder_is_pushed_to_a_private_repository(hub: Hub, folder: Path) -> None:
    status, output = push(hub, folder, REPOSITORY)
    assert (status, output.strip().endswith(f"{hub.url}/datasets/{REPOSITORY}")) == (0, True)
    assert hub.private == {REPOSITORY: True}
    own = {str(path.relative_to(folder)): path for path in folder.rglob("*") if path.is_file()}
    assert own.keys() == {"README.md", "data/train.parquet"}
    assert hub.files == {name: path.read_bytes() for name, path in own.items()}
    assert hub.keys <= {"Bearer hf_secret", ""}


def test_a_public_repository_needs_a_word(hub: Hub, folder: Path) -> None:
    hub.private[REPOSITORY] = False
    status, output = push(hub, folder, REPOSITORY)
    assert (status, "is public. Pass --public" in output, hub.files) == (1, True, {})
    status, _ = push(hub, folder, REPOSITORY, "--public")
    assert (status, bool(hub.files)) == (0, True)


def test_mistakes_are_sentences(hub: Hub, folder: Path, tmp_path: Path) -> None:
    status, output = push(hub, tmp_path, REPOSITORY)
    assert (status, "was not made by `ltrain convert --to hf`" in output) == (1, True)
    status, output = push(hub, folder, REPOSITORY, token="")
    assert (status, "HF_TOKEN is not set" in output) == (1, True)
    hub.may_write = False
    status, output = push(hub, folder, REPOSITORY)
    assert (status, "needs the right to write to team/chats" in output) == (1, True)
    status, output = push(hub, folder, "a/b/c")
    assert (status, "'a/b/c' is not the name of a repository" in output) == (1, True)
