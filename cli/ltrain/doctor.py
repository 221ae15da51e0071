"""`ltrain doctor`: what is installed, reachable and misconfigured, each with its mend.

All questions are asked at once: servers that hang cost one timeout in all. An instrumentor that is
tried has ten seconds at least.
"""

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from http.client import HTTPException
from importlib.metadata import PackageNotFoundError, requires, version

from packaging.requirements import Requirement

from ltrain import doctor_collector
from ltrain_collector import dsn
from ltrain_instrument import diagnosis
from ltrain_instrument.choice import Choice
from ltrain_instrument.delivery import Delivery, Fate, traces_url
from ltrain_instrument.diagnosis import Finding, State
from ltrain_instrument.errors import LtrainError
from ltrain_instrument.private import is_private
from ltrain_instrument.redaction import bare
from ltrain_instrument.settings import GATEWAY, HOME, STORE, VLLM_PYTHON

TRIAL = 10.0
"""Least seconds that an instrumentor has to load; they are tried side by side."""
REPLIES = 2
"""Requests that a check sends to its server, one after the other; the store's sends two."""
SLACK = 2.0
"""Seconds after the last answer in which a finding is made."""
REPORT = "This is a defect of ltrain; report it with this line"
PYTHONS = ((3, 11), (3, 12))

Check = Callable[[], Finding | None]


def examine(timeout: float = 1.0) -> list[Finding]:
    """Return what is found, in the order of the way that a span takes.

    Args:
        timeout: seconds that a server has for an answer.
    """
    settings = [*diagnosis.settings(os.environ), *diagnosis.variables(os.environ)]
    here = [_python(), *_extras()]
    chosen = diagnosis.chosen(os.environ)
    instrumentors = {name: diagnosis.instrumentor(choice) for name, choice in chosen.items()}
    asked = _Questions()
    for name, check in (
        ("collector", partial(collector, timeout)),
        ("health", partial(doctor_collector.health, timeout)),
        ("store", partial(store, timeout)),
        ("gateway", partial(gateway, timeout)),
        ("vllm", vllm),
    ):
        asked.ask(name, check, REPLIES * timeout + SLACK)
    trial = max(TRIAL, REPLIES * timeout)
    for name, choice in chosen.items():
        if choice.taken is not None and (choice.entry is not None or choice.taken.switch):
            asked.ask(name, partial(failure, choice, trial), trial + SLACK)
    waiting = [*home(), *diagnosis.spool(HOME.read())]
    answers = asked.answers()
    for name in chosen:
        instrumentors[name] = answers.pop(name, None) or instrumentors[name]
    found = [finding for finding in answers.values() if finding is not None]
    return [*here, *settings, *instrumentors.values(), *found, *waiting]


def home() -> Iterator[Finding]:
    """Name the folder of ltrain where other users of this machine may read it."""
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
            f"{folder} may be read by other users: traces, keys and weights are in it",
            f"Close it: chmod 700 {folder}",
        )


class _Questions:
    """Checks, each in a thread that is left behind when it takes too long."""

    def __init__(self) -> None:
        self._asked: list[tuple[str, threading.Thread, float]] = []
        self._answers: dict[str, Finding | None] = {}

    def ask(self, name: str, check: Check, patience: float) -> None:
        def answer() -> None:
            try:
                self._answers[name] = check()
            except (LtrainError, OSError) as error:
                self._answers[name] = Finding(name, State.FAULT, str(error))
            except Exception as error:  # in a thread, where nobody else would report it
                found = f"the check itself failed: {type(error).__name__}: {error}"
                self._answers[name] = Finding(name, State.FAULT, found, REPORT)

        thread = threading.Thread(target=answer, daemon=True)
        thread.start()
        self._asked.append((name, thread, time.monotonic() + patience))

    def answers(self) -> dict[str, Finding | None]:
        for name, thread, deadline in self._asked:
            thread.join(max(0.0, deadline - time.monotonic()))
            late = Finding(name, State.FAULT, "it did not answer in time", "Is it overloaded?")
            self._answers.setdefault(name, late)
        return {name: self._answers[name] for name, *_ in self._asked}


def _python() -> Finding:
    running = sys.version.split()[0]
    if sys.version_info[:2] in PYTHONS:
        return Finding("python", State.OK, f"{running} at {sys.executable}")
    mend = "Make an environment with python3.11 or python3.12."
    return Finding("python", State.FAULT, f"{running} is not supported", mend)


def _extras() -> Iterator[Finding]:
    wanted: dict[str, list[Requirement]] = {}
    for text in requires("ltrain") or ():
        requirement = Requirement(text)
        for extra in ("langchain", "openai", "store", "serve", "train"):
            marker = requirement.marker
            if marker and marker.evaluate({"extra": extra}) and not marker.evaluate({"extra": ""}):
                wanted.setdefault(extra, []).append(requirement)
    for extra, requirements in wanted.items():
        lacking, wrong = [], []
        for requirement in requirements:
            try:
                there = version(requirement.name)
            except PackageNotFoundError:
                lacking.append(requirement.name)
                continue
            if not requirement.specifier.contains(there, prereleases=True):
                wrong.append(f"{requirement.name} {there} is not {requirement.specifier}")
        name, mend = f"ltrain[{extra}]", f"pip install 'ltrain[{extra}]'"
        if wrong:
            yield Finding(name, State.FAULT, "; ".join(wrong), mend)
        elif lacking:
            yield Finding(name, State.NOTE, f"lacks {', '.join(lacking)}", mend)
        else:
            yield Finding(name, State.OK, "installed")


def failure(choice: Choice, seconds: float = TRIAL) -> Finding | None:
    """Return how a library's instrumentor fails; None when it loads within `seconds`."""
    name = choice.library.name
    try:
        done = subprocess.run(
            [sys.executable, "-m", "ltrain_instrument.probe", name],
            env=os.environ | {"TRACELOOP_TELEMETRY": "false"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=seconds,
            check=False,
        )
    except subprocess.TimeoutExpired:
        found = (
            f"its instrumentor took more than {seconds:.0f} s to load, and was not tried further"
        )
        return Finding(name, State.NOTE, found)
    if done.returncode == 0:
        return None
    last = done.stderr.decode(errors="replace").strip().splitlines()[-1:]
    what = choice.entry.value if choice.entry else "what is built in"
    others = [it.maker for it in choice.library.instrumentors if it != choice.taken]
    mend = f"LTRAIN_INSTRUMENTORS={name}={others[0] if others else 'none'}, or another version."
    return Finding(name, State.FAULT, f"{what} fails: {''.join(last)}", mend)


def collector(timeout: float) -> Finding:
    """Send a request without spans to where agents send theirs."""
    delivery = Delivery(traces_url(), timeout=timeout)
    receipt = delivery.post(b"")
    delivery.close()
    where = bare(delivery.url)
    if receipt.fate is Fate.TAKEN:
        return Finding("collector", State.OK, f"takes spans at {where}")
    reason = receipt.reason.replace(delivery.url, where)
    mend = "`ltrain up` starts one here; OTEL_EXPORTER_OTLP_ENDPOINT names another."
    if "OTEL_EXPORTER_OTLP_HEADERS" in receipt.remedy:
        mend = f"{receipt.remedy} `ltrain key make ingest` makes one."
    return Finding("collector", State.FAULT, reason, mend)


def store(timeout: float) -> Finding:
    """Look for the store, without opening it."""
    given = STORE.read()
    address = dsn.parse_dsn(given or "http://127.0.0.1:8123")
    mend = "`ltrain up` makes and serves one; LTRAIN_STORE names another."
    if isinstance(address, dsn.Server):
        if (fault := _get(f"{address}/ping", timeout)) is None:
            well = Finding("store", State.OK, f"answers at {address}")
            return doctor_collector.store(address, timeout) or well
        if given:
            return Finding("store", State.FAULT, f"{address}: {fault}", mend)
        address = dsn.Folder((HOME.read() / "store").absolute())
    if address.path.is_dir():
        return Finding("store", State.OK, f"the folder {address.path}")
    return Finding("store", State.NOTE, f"there is none in {address.path}", mend)


def gateway(timeout: float) -> Finding:
    """Ask the gateway for its health."""
    where = bare(GATEWAY.read())
    fault = _get(f"{GATEWAY.read().rstrip('/')}/health", timeout)
    if fault is None:
        return Finding("gateway", State.OK, f"answers at {where}")
    state = State.FAULT if os.environ.get(GATEWAY.name) else State.NOTE
    mend = "`ltrain serve MODEL` starts one; it is needed to train, not to record."
    return Finding("gateway", state, f"{where}: {fault}", mend)


def vllm() -> Finding:
    """Look for vLLM's own Python."""
    from ltrain_train.gateway.vllm_python import NoVllm, find_python

    try:
        return Finding("vllm", State.OK, f"in the environment of {find_python()}")
    except NoVllm as error:
        state = State.FAULT if os.environ.get(VLLM_PYTHON.name) else State.NOTE
        found, _, mend = str(error).partition(". ")
        return Finding("vllm", state, found, mend)


def _get(url: str, timeout: float) -> str | None:
    """Return what is wrong with an address; None when it answers."""
    try:
        status, _ = doctor_collector.fetch(url, timeout)
    except (OSError, HTTPException, ValueError) as error:
        return str(error) or type(error).__name__
    return None if status == 200 else f"it answered {status}"


def report(findings: list[Finding]) -> Iterator[str]:
    """Return lines for a terminal, the mend below what it mends."""
    width = max(len(each.name) for each in findings)
    for each in findings:
        yield f"{each.state:<5}  {each.name:<{width}}  {each.found}"
        if each.mend and each.state is not State.OK:
            yield f"{'':<5}  {'':<{width}}  > {each.mend}"
    faults = sum(each.state is State.FAULT for each in findings)
    yield f"{faults} faults" if faults > 1 else "1 fault" if faults else "all is well"


def healthy(findings: list[Finding]) -> bool:
    """Return whether nothing has to be fixed."""
    return all(each.state is not State.FAULT for each in findings)
