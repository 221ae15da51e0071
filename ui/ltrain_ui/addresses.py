"""The addresses of pages."""

from urllib.parse import quote, urlencode

from ltrain_transforms.reports import GroupReference, Kind, Reference, WaveReference
from ltrain_ui.suggestions import Suggestion

FOLDERS = {
    Kind.RUN: "runs",
    Kind.ROLLOUT: "rollouts",
    Kind.TRACE: "traces",
    Kind.SESSION: "sessions",
    Kind.SPAN: "spans",
    Kind.POLICY: "policies",
    Kind.DATASET: "datasets",
}
"""The first part of the path of a page, by the kind of what it shows."""

KeyLink = tuple[str, str, str]
"""Text, key and address of a link above a page."""


def address_of(reference: object) -> str | None:
    """Return the address of the page of a reference; None for any other cell of a report."""
    match reference:
        case Reference(kind, name):
            return f"/{FOLDERS[kind]}/{quote(name, safe='')}"
        case WaveReference(run, mode, wave):
            page = f"/runs/{quote(run, safe='')}/waves/{wave}"
            return f"{page}?{urlencode({'mode': mode})}"
        case GroupReference(run=run, mode=mode, wave=wave, task=task):
            place = {"run": run, "mode": mode, "wave": wave, "task": task}
            return f"/groups?{urlencode(place)}"
        case _:
            return None


def suggestion_address(suggestion: Suggestion) -> str:
    """Return the address of the page of a suggestion."""
    if suggestion.kind == "task":
        return task_address(suggestion.run, suggestion.text)
    return str(address_of(Reference(Kind(suggestion.kind), suggestion.text)))


def task_address(run: str, task: str) -> str:
    """Return the address of a task of a run, in all waves."""
    return f"/runs/{quote(run, safe='')}/tasks/{quote(task, safe='')}"


def tokens_address(rollout: str) -> str:
    """Return the address of the trained rows of a rollout."""
    return f"{address_of(Reference(Kind.ROLLOUT, rollout))}/tokens"


def rules_address(wave: WaveReference) -> str:
    """Return the address of what rules give on a wave."""
    return str(address_of(wave)).replace("?", "/rules?")


def deployment_address(policy: str, experiment: str = "") -> str:
    """Return the address of the stages of a policy's versions, and of a trial; "": the last."""
    page = f"{address_of(Reference(Kind.POLICY, policy))}/deployment"
    return f"{page}?{urlencode({'experiment': experiment})}" if experiment else page


def compare_address(a: str, b: str, mode: str, name: str = "reward") -> str:
    """Return the address of the comparison of two policy versions."""
    return f"/compare?{urlencode({'a': a, 'b': b, 'mode': mode, 'name': name})}"
