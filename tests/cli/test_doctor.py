"""`ltrain doctor` run as from a user's shell, with servers that answer, hang or are absent."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from tests.fork_server import ltrain_command
from tests.train.gpus import H100, install_nvidia_smi, install_torch

from ltrain_instrument.instrumentors import Finding, State
from ltrain_instrument.instrumentors.choice import DISABLED
from ltrain_instrument.instrumentors.diagnosis import (
    check_settings,
    check_spool,
    check_variables,
)

BROKEN = """
class Broken:
    def instrument(self, **kwargs):
        raise RuntimeError("as asked")
"""


ALL: dict[str, Any] = {DISABLED: ""}
"""The variables with which `doctor` tries all instrumentors."""


class Answers(BaseHTTPRequestHandler):
    """Answers every request with 200."""

    def do_GET(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    do_POST = do_GET

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def answering() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Answers)
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


@pytest.fixture
def hanging() -> Iterator[str]:
    with socket.create_server(("127.0.0.1", 0)) as listening:  # accepted by the kernel, never read
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"


LIGHT = """
import sys
lacking = "httpx polars torch chdb pyarrow starlette numpy orjson jwt uvicorn jinja2"
sys.modules.update(dict.fromkeys(lacking.split()))
from ltrain.cli import main
main()
"""
"""`ltrain` in an environment with only the agent's dependencies."""


def doctor(
    tmp_path: Path,
    url: str,
    *args: str,
    timeout: float = 50,
    command: tuple[str, ...] = (),
    **environ: str,
) -> tuple[int, str]:
    """Run the command without instrumentors, each of which costs a process that imports it.

    The timeout is long enough for a busy machine.
    """
    prefixes = ("LTRAIN_", "OTEL_", "TRACELOOP_")
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(prefixes)}
    addresses = {
        "LTRAIN_HOME": str(tmp_path / "home"),
        "OTEL_EXPORTER_OTLP_ENDPOINT": url,
        "LTRAIN_STORE": url,
        "LTRAIN_GATEWAY": url,
        DISABLED: "*",
    }
    done = subprocess.run(
        [*(command or (ltrain_command(),)), "doctor", "--timeout", str(timeout), *args],
        env=inherited | addresses | environ,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.stderr == ""
    return done.returncode, done.stdout


def states(out: str) -> dict[str, tuple[str, str]]:
    found: list[dict[str, Any]] = json.loads(out)["findings"]
    return {each["name"].split()[0]: (each["state"], each["detail"]) for each in found}


def test_all_is_well(tmp_path: Path, answering: str) -> None:
    status, out = doctor(tmp_path, answering)
    assert (status, out.splitlines()[-1]) == (0, "all is well")
    assert f"accepts spans at {answering}/v1/traces" in out
    status, out = doctor(tmp_path, answering, "--json", **ALL)
    assert (status, json.loads(out)["well"]) == (0, True)
    found = states(out)
    assert found["python"][0] == "ok"
    assert found["collector"] == ("ok", f"accepts spans at {answering}/v1/traces")
    assert found["store"] == ("ok", f"answers at {answering}")
    assert found["gateway"] == ("ok", f"answers at {answering}")
    assert found["openai"][1].startswith("opentelemetry-instrumentation-openai ")
    assert found["spool"] == ("ok", f"empty ({tmp_path}/home/spool)")


def test_it_runs_in_the_environment_of_an_agent(tmp_path: Path, answering: str) -> None:
    here = (sys.executable, "-c", LIGHT)
    _, out = doctor(tmp_path, answering, "--json", command=here, **ALL)
    found = states(out)
    assert {found[name][0] for name in ("collector", "store", "gateway", "vllm")} == {"ok"}
    lacking = str(tmp_path / "none")
    _, out = doctor(tmp_path, answering, "--json", command=here, LTRAIN_VLLM_PYTHON=lacking)
    assert states(out)["vllm"] == ("fault", f"There is no Python at '{tmp_path}/none'")


def test_bubblewrap_that_cannot_start_a_sandbox_is_a_note(tmp_path: Path, answering: str) -> None:
    program = tmp_path / "bin" / "bwrap"
    program.parent.mkdir()
    program.write_text(
        "#!/bin/sh\necho bwrap: No permissions to create new namespace >&2; exit 1\n"
    )
    program.chmod(0o755)
    path = f"{program.parent}{os.pathsep}{os.environ['PATH']}"
    _, out = doctor(tmp_path, answering, "--json", PATH=path)
    assert states(out)["sandbox"] == (
        "note",
        "bwrap cannot start a sandbox: bwrap: No permissions to create new namespace",
    )
    (found,) = [each for each in json.loads(out)["findings"] if each["name"] == "sandbox"]
    assert found["fix"].startswith("Allow unprivileged user namespaces: sysctl -w")


def test_a_gpu_that_torch_does_not_use_is_a_note(tmp_path: Path, answering: str) -> None:
    programs = install_nvidia_smi(tmp_path / "bin", H100)
    path = f"{programs}{os.pathsep}{os.environ['PATH']}"
    status, out = doctor(tmp_path, answering, "--json", PATH=path)
    state, detail = states(out)["gpu"]
    assert (status, state) == (0, "note")
    assert detail.endswith(" is not used: torch 2.13.0+cpu is built for CPUs")
    assert "NVIDIA H100 80GB HBM3 (driver 580.95.05, 78.6 of 79.6 GiB free)" in detail
    (found,) = [each for each in json.loads(out)["findings"] if each["name"] == "gpu"]
    assert found["fix"].endswith("run: make setup DEVICE=cuda")


@pytest.mark.nightly
def test_a_gpu_that_torch_cannot_use_is_a_fault(tmp_path: Path, answering: str) -> None:
    """The metadata are those of a CUDA build; what is imported is the CPU build of the tests."""
    install_torch(tmp_path / "metadata", "2.13.0")
    programs = install_nvidia_smi(tmp_path / "bin", H100)
    path = f"{programs}{os.pathsep}{os.environ['PATH']}"
    metadata = str(tmp_path / "metadata")
    status, out = doctor(tmp_path, answering, "--json", PATH=path, PYTHONPATH=metadata)
    state, detail = states(out)["gpu"]
    assert (status, state) == (1, "fault")
    assert detail.endswith(
        "torch 2.13.0 cannot use it: AssertionError: Torch not compiled with CUDA enabled"
    )


def test_a_home_that_cannot_be_read_is_a_fault(tmp_path: Path, answering: str) -> None:
    # a name for which stat(2) fails even for root, like a home that others may not enter
    home = tmp_path / ("x" * 300)
    store = f"chdb://{home}/store"
    status, out = doctor(tmp_path, answering, "--json", LTRAIN_HOME=str(home), LTRAIN_STORE=store)
    found = states(out)
    assert status == 1
    assert found["home"] == ("fault", f"{home}: File name too long")
    assert found["store"][0] == found["spool"][0] == "fault"
    assert "the check itself failed" not in found["store"][1]
    assert found["collector"][0] == "ok"


def test_servers_that_hang_are_faults_soon(tmp_path: Path, hanging: str) -> None:
    status, out = doctor(tmp_path, hanging, "--json", timeout=1)  # 2 s where the machine is free
    assert status == 1
    found = states(out)
    assert found["collector"] == ("fault", f"{hanging}/v1/traces: timed out")
    assert found["store"] == ("fault", f"{hanging}: timed out")
    assert found["gateway"] == ("fault", f"{hanging}: timed out")


def test_secrets_in_addresses_are_not_shown(tmp_path: Path) -> None:
    url = "http://me:s3cret@127.0.0.1:9"
    _, out = doctor(tmp_path, url, LTRAIN_STORE="clickhouse://me:s3cret@127.0.0.1:9/otel")
    assert "[redacted]@127.0.0.1:9" in out
    assert "s3cret" not in out


def test_a_misconfiguration_is_named_with_its_fix(tmp_path: Path, answering: str) -> None:
    status, out = doctor(
        tmp_path,
        answering,
        OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT="many",
        LTRAIN_REDACT="(",
        LTRAIN_INSTRUMENTORS="opnai=traceloop",
        LTRAIN_VLLM_PYTHON="/nowhere/python",
    )
    assert status == 1
    lines = [" ".join(line.split()) for line in out.splitlines()]
    at = lines.index(
        "fault OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT=many: "
        "OpenTelemetry cannot be imported: the value must be an integer"
    )
    assert lines[at + 1] == "> Unset OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT."
    assert "LTRAIN_REDACT: '(' is not a valid regular expression" in out
    assert "Did you mean 'openai'?" in out
    assert "There is no Python at '/nowhere/python'" in out
    assert lines[-1].endswith(" faults")


def test_a_learning_rate_whose_updates_are_not_served_is_a_note(
    tmp_path: Path, answering: str
) -> None:
    recipe = tmp_path / "ltrain.toml"
    text = 'policy = [{ name = "sql" }]\nreward = [{ name = "a", evaluation = "a" }]\n[train]\n'
    recipe.write_text(f'{text}learning_rate = 1e-5\ndtype = "bf16"\n')
    status, out = doctor(tmp_path, answering)
    assert "train.learning_rate = 1e-05 is in the dead zone of bf16" in out
    assert 'Set train.learning_rate to 0.0002 or more, or train.dtype = "fp32".' in out
    assert status == 0
    recipe.write_text(f'{text}lora_rank = 0\ndtype = "bf16"\n')
    _, out = doctor(tmp_path, answering)
    assert 'Set train.dtype = "fp32", or make many updates: their sum is served.' in out
    recipe.write_text(f'{text}learning_rate = 1e-5\ndtype = "fp32"\n')
    _, out = doctor(tmp_path, answering, "--json")
    assert states(out)["recipe"] == ("ok", "ltrain.toml is valid")


def test_a_failing_instrumentor_is_named(tmp_path: Path, answering: str) -> None:
    (tmp_path / "site").mkdir()
    for name, entries in (
        ("crewai", ""),
        ("openinference-instrumentation-crewai", "crewai = broken:Broken"),
    ):
        made = tmp_path / "site" / f"{name.replace('-', '_')}-1.10.dist-info"
        made.mkdir()
        (made / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.10\n")
        (made / "entry_points.txt").write_text(f"[opentelemetry_instrumentor]\n{entries}\n")
    (tmp_path / "site" / "crewai.py").write_text("")
    (tmp_path / "site" / "broken.py").write_text(BROKEN)
    path = f"{tmp_path / 'site'}:{os.environ.get('PYTHONPATH', '')}"
    environ: dict[str, Any] = {"PYTHONPATH": path, DISABLED: "httpx,httpx2,langchain,openai"}
    status, out = doctor(tmp_path, answering, "--json", **environ)
    assert status == 1
    assert states(out)["crewai"] == ("fault", "broken:Broken fails: RuntimeError: as asked")
    (tmp_path / "site" / "broken.py").write_text(BROKEN.replace("raise", "return"))
    status, out = doctor(tmp_path, answering, "--json", **environ)
    assert status == 0
    assert states(out)["crewai"] == ("ok", "openinference-instrumentation-crewai 1.10")


@pytest.mark.parametrize(
    ("name", "value", "why"),
    [
        ("OTEL_SDK_DISABLED", "true", "nothing is recorded"),
        ("OTEL_TRACES_EXPORTER", "none", "no span is sent to a collector"),
        ("OTEL_TRACES_SAMPLER", "traceidratio", "rollouts are recorded incompletely"),
        (
            "OTEL_SPAN_ATTRIBUTE_VALUE_LENGTH_LIMIT",
            "4096",
            "texts and token ids are cut without a warning",
        ),
        ("OTEL_ATTRIBUTE_COUNT_LIMIT", "128", "a long conversation loses its oldest messages"),
        ("OTEL_PYTHON_DISTRO", "distro", "another distro replaces ltrain's"),
        (
            "OTEL_CONFIG_FILE",
            "o.yaml",
            "its exporters and its sampler replace ltrain's: spans do not wait on disk",
        ),
        (
            "OTEL_EXPORTER_OTLP_PROTOCOL",
            "grpc",
            "spans do not wait on disk for a collector",
        ),
    ],
)
def test_conflicting_variables_are_faults(name: str, value: str, why: str) -> None:
    found = Finding(name, State.FAULT, f"{name}={value}: {why}", f"Unset {name}.")
    assert list(check_variables({name: value})) == [found]


def test_a_sampler_that_follows_the_caller_is_a_note() -> None:
    (found,) = check_variables({"OTEL_TRACES_SAMPLER": "parentbased_always_on"})
    assert (found.state, found.fix) == (State.NOTE, "Unset OTEL_TRACES_SAMPLER.")
    lost = "rollouts, rewards and model calls below a caller that does not sample"
    assert lost in found.detail
    assert list(check_variables({"OTEL_TRACES_SAMPLER": "always_on"})) == []


def test_grpc_without_its_exporter_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.grpc", None)
    [found] = check_variables({"OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"})
    assert found.detail.endswith(", and opentelemetry-exporter-otlp-proto-grpc is not installed")


def test_content_that_is_switched_off_is_a_note() -> None:
    (found,) = check_variables({"TRACELOOP_TRACE_CONTENT": "false"})
    problem = "TRACELOOP_TRACE_CONTENT=false: messages are not recorded"
    assert (found.state, found.detail) == (State.NOTE, problem)
    quiet = {"OTEL_SDK_DISABLED": "false", "OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT": "100000"}
    assert list(check_variables(quiet)) == []
    assert list(check_settings({})) == []


def test_waiting_and_refused_files(tmp_path: Path) -> None:
    folder = tmp_path / "spool"
    (folder / "refused").mkdir(parents=True)
    (folder / "a.otlp").write_bytes(b"x" * (1 << 20))
    (folder / "refused" / "b.otlp").write_bytes(b"x")
    summary = f"1 file, 1.0 MiB, waiting in {folder}"
    fresh, refused = check_spool(tmp_path)
    assert (fresh.state, fresh.detail) == (State.OK, summary)
    assert refused.state is State.FAULT
    assert refused.detail.startswith("1 file of refused spans in ")
    hour = time.time() - 3600
    os.utime(folder / "a.otlp", (hour, hour))
    old, _ = check_spool(tmp_path)
    assert (old.state, old.detail) == (State.FAULT, f"{summary}, the oldest 60 minutes")
