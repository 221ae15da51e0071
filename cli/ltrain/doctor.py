"""`ltrain doctor`: check what is installed, reachable and misconfigured, with a fix for each fault.

All checks run at once, so servers that hang cost one timeout in total. An instrumentor that is
loaded as a trial has at least ten seconds.
"""

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from http.client import HTTPException
from importlib.metadata import PackageNotFoundError, requires, version
from shutil import which

from packaging.requirements import Requirement

from ltrain import doctor_collector
from ltrain_collector import dsn
from ltrain_instrument.delivery import Sender, SendStatus, traces_url
from ltrain_instrument.errors import LtrainError
from ltrain_instrument.files import is_private
from ltrain_instrument.installation import install_command
from ltrain_instrument.instrumentors import Finding, InstrumentorChoice, State, diagnosis
from ltrain_instrument.privacy import remove_url_credentials
from ltrain_instrument.settings import GATEWAY, HOME, STORE, VLLM_PYTHON
from ltrain_train import gpu

TRIAL = 10.0
"""Minimum seconds that an instrumentor has to load; all of them are tried in parallel."""
REQUESTS = 2
"""Maximum number of sequential requests of a check; the check of the store sends two."""
TORCH_TIMEOUT = 60.0
"""Seconds that nvidia-smi and torch have to find a GPU; without a GPU this check takes none."""
SLACK = 2.0
"""Seconds for a check to finish after the last response."""
REPORT = "This is a bug in ltrain; please report it with this line"
PYTHONS = ((3, 11), (3, 12))
AGENT_PYTHONS = (*PYTHONS, (3, 13))
"""Versions on which agents and the extra `collect` work; training needs one of `PYTHONS`."""

Check = Callable[[], Finding | None]


def run_checks(environ: Mapping[str, str], timeout: float = 1.0) -> list[Finding]:
    """Run all checks and return their findings, in the order of the path of a span.

    Args:
        environ: the environment whose variables are checked.
        timeout: seconds to wait for the answer of a server.
    """
    settings = [*diagnosis.check_settings(environ), *diagnosis.check_variables(environ)]
    here = [_python(), *_extras()]
    chosen = diagnosis.installed_choices(environ)
    instrumentors = {name: diagnosis.check_instrumentor(chosen, name) for name in chosen}
    with suppress(ImportError):  # it changes the working directory meanwhile, for every thread
        import chdb  # noqa: F401
    checks = _Checks()
    for name, check in (
        ("collector", partial(collector, timeout)),
        ("health", partial(doctor_collector.health, timeout)),
        ("store", partial(store, timeout)),
        ("doubled", partial(on_server, doctor_collector.doubled_calls, timeout)),
        ("dialects", partial(on_server, doctor_collector.unknown_calls, timeout)),
        ("gateway", partial(gateway, timeout)),
        ("vllm", vllm),
        ("sandbox", sandbox),
        ("recipe", recipe),
        ("template", partial(chat_template, timeout)),
    ):
        checks.start(name, check, REQUESTS * timeout + SLACK)
    checks.start("gpu", gpu_of_torch, TORCH_TIMEOUT + SLACK)
    trial = max(TRIAL, REQUESTS * timeout)
    for name, choice in chosen.items():
        if choice.instrumentor is not None and (
            choice.entry is not None or choice.instrumentor.switch
        ):
            checks.start(name, partial(instrumentor_failure, choice, trial), trial + SLACK)
    local = [*home(), *diagnosis.check_spool(HOME.read())]
    results = checks.results()
    for name in chosen:
        instrumentors[name] = results.pop(name, None) or instrumentors[name]
    servers = [finding for finding in results.values() if finding is not None]
    return [*here, *settings, *instrumentors.values(), *servers, *local]


def home() -> Iterator[Finding]:
    """Yield a finding if other users of this machine can read the folder of ltrain."""
    folder = HOME.read().absolute()
    try:
        private = is_private(folder)
    except OSError as error:
        yield Finding("home", State.FAULT, f"{folder}: {error.strerror}", "Set LTRAIN_HOME.")
        return
    if not private:
        yield Finding(
            "home",
            State.NOTE,
            f"other users can read {folder}, which holds traces, keys and weights",
            f"Run: chmod 700 {folder}",
        )


class _Checks:
    """Checks, each in a thread that is abandoned when it takes too long."""

    def __init__(self) -> None:
        self._threads: list[tuple[str, threading.Thread, float]] = []
        self._results: dict[str, Finding | None] = {}

    def start(self, name: str, check: Check, timeout: float) -> None:
        def run() -> None:
            try:
                self._results[name] = check()
            except (LtrainError, OSError) as error:
                self._results[name] = Finding(name, State.FAULT, str(error))
            except Exception as error:  # in a thread, where nothing else would report it
                problem = f"the check itself failed: {type(error).__name__}: {error}"
                self._results[name] = Finding(name, State.FAULT, problem, REPORT)

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        self._threads.append((name, thread, time.monotonic() + timeout))

    def results(self) -> dict[str, Finding | None]:
        for name, thread, deadline in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
            late = Finding(name, State.FAULT, "it did not answer in time", "Is it overloaded?")
            self._results.setdefault(name, late)
        return {name: self._results[name] for name, *_ in self._threads}


def _python() -> Finding:
    running = sys.version.split()[0]
    if sys.version_info[:2] in PYTHONS:
        return Finding("python", State.OK, f"{running} at {sys.executable}")
    if sys.version_info[:2] in AGENT_PYTHONS:
        detail = f"{running} at {sys.executable}: collects; training needs 3.11 or 3.12"
        return Finding("python", State.OK, detail)
    fix = "Create an environment with Python 3.11 or 3.12; 3.13 collects, but does not train."
    return Finding("python", State.FAULT, f"{running} is not supported", fix)


def _extras() -> Iterator[Finding]:
    wanted: dict[str, list[Requirement]] = {}
    for text in requires("ltrain") or ():
        requirement = Requirement(text)
        for extra in ("langchain", "openai", "collect", "serve", "train"):
            marker = requirement.marker
            if marker and marker.evaluate({"extra": extra}) and not marker.evaluate({"extra": ""}):
                wanted.setdefault(extra, []).append(requirement)
    for extra, requirements in wanted.items():
        missing, wrong = [], []
        for requirement in requirements:
            try:
                installed = version(requirement.name)
            except PackageNotFoundError:
                missing.append(requirement.name)
                continue
            if not requirement.specifier.contains(installed, prereleases=True):
                wrong.append(f"{requirement.name} {installed} is not {requirement.specifier}")
        name, fix = f"ltrain[{extra}]", install_command(extra)
        if wrong:
            yield Finding(name, State.FAULT, "; ".join(wrong), fix)
        elif missing:
            yield Finding(name, State.NOTE, f"lacks {', '.join(missing)}", fix)
        else:
            yield Finding(name, State.OK, "installed")


def instrumentor_failure(choice: InstrumentorChoice, seconds: float = TRIAL) -> Finding | None:
    """Load the instrumentor of a library in a subprocess; return None if it loads in `seconds`."""
    name = choice.library.name
    try:
        done = subprocess.run(
            [sys.executable, "-m", "ltrain_instrument.instrumentors.probe", name],
            env=os.environ | {"TRACELOOP_TELEMETRY": "false"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=seconds,
            check=False,
        )
    except subprocess.TimeoutExpired:
        problem = f"its instrumentor did not load in {seconds:.0f} s; the trial was stopped"
        return Finding(name, State.NOTE, problem)
    if done.returncode == 0:
        return None
    last = done.stderr.decode(errors="replace").strip().splitlines()[-1:]
    what = choice.entry.value if choice.entry else "the built-in instrumentor"
    others = [it.provider for it in choice.library.instrumentors if it != choice.instrumentor]
    other = others[0] if others else "none"
    fix = f"Set LTRAIN_INSTRUMENTORS={name}={other}, or install another version."
    return Finding(name, State.FAULT, f"{what} fails: {''.join(last)}", fix)


def collector(timeout: float) -> Finding:
    """Send a request without spans to the endpoint that agents use."""
    sender = Sender(traces_url, timeout=timeout)
    result = sender.post(b"")
    sender.close()
    where = remove_url_credentials(sender.url)
    if result.status is SendStatus.ACCEPTED:
        return Finding("collector", State.OK, f"accepts spans at {where}")
    reason = result.reason.replace(sender.url, where)
    fix = "Start one here with `ltrain up`, or set OTEL_EXPORTER_OTLP_ENDPOINT to another."
    if "OTEL_EXPORTER_OTLP_HEADERS" in result.remedy:
        fix = f"{result.remedy} Make a key with `ltrain key make ingest`."
    return Finding("collector", State.FAULT, reason, fix)


def store(timeout: float) -> Finding:
    """Check that the store exists and answers, without opening it."""
    configured = STORE.read()
    address = dsn.parse_dsn(configured or "http://127.0.0.1:8123")
    fix = "Create and serve one with `ltrain up`, or set LTRAIN_STORE to another."
    if isinstance(address, dsn.Server):
        if (fault := _get(f"{address}/ping", timeout)) is None:
            reachable = Finding("store", State.OK, f"answers at {address}")
            return doctor_collector.store(address, timeout) or reachable
        if configured:
            return Finding("store", State.FAULT, f"{address}: {fault}", fix)
        address = dsn.Folder((HOME.read() / "store").absolute())
    if address.path.is_dir():
        return Finding("store", State.OK, f"the folder {address.path}")
    return Finding("store", State.NOTE, f"there is none in {address.path}", fix)


def on_server(
    check: Callable[[dsn.Server, float], Finding | None], timeout: float
) -> Finding | None:
    """Check the traces of a store that is a server; a folder is not opened for it."""
    address = dsn.parse_dsn(STORE.read() or "http://127.0.0.1:8123")
    return check(address, timeout) if isinstance(address, dsn.Server) else None


def gateway(timeout: float) -> Finding:
    """Check that the gateway answers and does not hold calls."""
    where = remove_url_credentials(GATEWAY.read())
    url = f"{GATEWAY.read().rstrip('/')}/health"
    fault = _get(url, timeout)
    if fault is None:
        return Finding("gateway", State.OK, f"answers at {where}")
    if fault == "it answered 503":
        fix = "Wait until the policy server has its weights; `ltrain serve` prints when."
        return Finding("gateway", State.NOTE, f"{where}: calls wait, see {url}", fix)
    state = State.FAULT if os.environ.get(GATEWAY.name) else State.NOTE
    fix = "Start one with `ltrain serve MODEL`; training needs it, recording does not."
    return Finding("gateway", state, f"{where}: {fault}", fix)


def vllm() -> Finding:
    """Check that the Python environment of vLLM exists."""
    from ltrain_train.vllm_python import NoVllm, find_python

    try:
        return Finding("vllm", State.OK, f"in the environment of {find_python()}")
    except NoVllm as error:
        state = State.FAULT if os.environ.get(VLLM_PYTHON.name) else State.NOTE
        problem, _, fix = str(error).partition(". ")
        return Finding("vllm", state, problem, fix)


def sandbox() -> Finding | None:
    """Check that bubblewrap, if it is installed, can start a sandbox; None without it."""
    from ltrain_train.sandboxes import Bubblewrap, SandboxUnavailable

    if which("bwrap") is None:
        return None
    try:
        Bubblewrap().check()
    except SandboxUnavailable as error:
        problem, _, fix = str(error).partition(". ")
        return Finding("sandbox", State.NOTE, problem, fix)
    return Finding("sandbox", State.OK, "bubblewrap can start one")


def gpu_of_torch() -> Finding | None:
    """Check that torch, if it is installed, can use the GPU of this machine; None without one."""
    try:
        gpus = gpu.list_gpus()
    except gpu.NvidiaSmiFailed as error:
        problem, _, fix = str(error).partition(". ")
        return Finding("gpu", State.NOTE, problem, fix)
    found, torch = gpu.describe_gpus(gpus), gpu.torch_version()
    if not gpus:
        return None
    if torch is None:
        return Finding("gpu", State.OK, found)
    if gpu.is_cpu_build(torch):
        return Finding("gpu", State.NOTE, gpu.describe_unused(gpus, torch), gpu.INSTALL)
    if fault := gpu.torch_fault(TORCH_TIMEOUT - gpu.TIMEOUT):
        problem = f"{found}: torch {torch} cannot use it: {fault}"
        return Finding("gpu", State.FAULT, problem, gpu.DRIVER)
    return Finding("gpu", State.OK, f"{found}, used by torch {torch}")


def recipe() -> Finding | None:
    """Check the recipe of this folder, if there is one, and its learning rate."""
    try:
        from ltrain_train.policy import dead_zone, resolve_dtype
        from ltrain_transforms.recipe import DEFAULT, Recipe
    except ModuleNotFoundError:  # an agent's environment, which trains nothing
        return None
    if not DEFAULT.is_file():
        return None
    train = Recipe.load().train
    dtype = resolve_dtype(train).dtype
    end = dead_zone(dtype, lora=bool(train.lora_rank))
    if train.learning_rate >= end:
        return Finding("recipe", State.OK, f"{DEFAULT} is valid")
    return Finding(
        "recipe",
        State.NOTE,
        f"train.learning_rate = {train.learning_rate:g} is in the dead zone of {dtype}: rounding "
        "loses half or more of what 20 optimizer steps change",
        f'Set train.learning_rate to {end:g} or more, or train.dtype = "fp32".'
        if train.lora_rank
        else 'Set train.dtype = "fp32", or make many updates: their sum is served.',
    )


def chat_template(timeout: float) -> Finding | None:
    """Check that the policy of this folder's recipe sees the tools that agents send it."""
    try:
        from ltrain_train.policy import (
            NO_TOOLS,
            Policies,
            UnknownVersion,
            chat_template_option,
            renders_tools,
        )
        from ltrain_transforms.errors import BadRecipe
        from ltrain_transforms.recipe import DEFAULT, Recipe
    except ModuleNotFoundError:  # an agent's environment, which trains nothing
        return None
    address = dsn.parse_dsn(STORE.read() or "http://127.0.0.1:8123")
    if not DEFAULT.is_file() or not isinstance(address, dsn.Server):
        return None
    policies = Policies(HOME.read())
    try:
        loaded = Recipe.load()
        name, serve = loaded.trained[0].name, loaded.serve
        model = policies.weights_path(name, policies.current(name))
    except (BadRecipe, UnknownVersion):  # the check `recipe` reports it; nothing was served yet
        return None
    template = chat_template_option(serve.arguments(DEFAULT.parent, serve.dtype, loaded.train))
    if (
        serve.upstream
        or renders_tools(model, template)
        or not doctor_collector.sends_tools(address, name, timeout)
    ):
        return None
    problem, _, fix = NO_TOOLS.format(f"policy '{name}'").partition(". ")
    return Finding("template", State.NOTE, problem, fix)


def _get(url: str, timeout: float) -> str | None:
    """Return the error of a GET; None if the status is 200."""
    try:
        status, _ = doctor_collector.fetch(url, timeout)
    except (OSError, HTTPException, ValueError) as error:
        return str(error) or type(error).__name__
    return None if status == 200 else f"it answered {status}"
