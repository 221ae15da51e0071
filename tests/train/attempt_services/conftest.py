"""A program that serves as a service: it counts its visits, and ends where it is asked to."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest

from ltrain_train.attempt_services import ServicePool
from ltrain_transforms.recipe import Service

PROGRAM = """
import http.server, json, os, signal, sys
from pathlib import Path

folder = Path(os.environ["LTRAIN_SERVICE_FOLDER"])
visits = folder / "visits"

class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        if self.path.startswith("/die-once-") and not Path(self.path.strip("/")).exists():
            Path(self.path.strip("/")).touch()
            os.kill(os.getpid(), signal.SIGKILL)
        if self.path == "/die":
            os.kill(os.getpid(), signal.SIGKILL)
        if self.path == "/count":
            visits.write_text(visits.read_text() + "x" if visits.exists() else "x")
        content = json.dumps({"visits": len(visits.read_text()) if visits.exists() else 0,
                              "pid": os.getpid(), "environ": dict(os.environ)}).encode()
        self.send_response(503 if Path("unhealthy").exists() else 200)
        self.send_header("content-length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_):
        pass

print("serving", flush=True)
port = int(sys.argv[1] if len(sys.argv) > 1 else os.environ["LTRAIN_SERVICE_PORT"])
http.server.ThreadingHTTPServer(("127.0.0.1", port), Handler).serve_forever()
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The recipe's folder, with the program."""
    folder = tmp_path / "recipe"
    folder.mkdir()
    (folder / "program.py").write_text(PROGRAM)
    return folder


@pytest.fixture
def service() -> Callable[..., Service]:
    def make(**keys: Any) -> Service:
        default = {"name": "db", "command": "exec python program.py", "health": "/"}
        return Service.model_validate(default | keys)

    return make


@pytest.fixture
def pool(folder: Path, home: Path) -> Iterator[Callable[..., ServicePool]]:
    with ExitStack() as stack:

        def start(*services: Service, **settings: Any) -> ServicePool:
            pool = ServicePool(services, folder=folder, home=home, **settings)
            return stack.enter_context(closing(pool))

        yield start
