"""Versions that are prompts: the text of one, those that are current, and a new one from a text."""

from collections.abc import Iterator

from ltrain_instrument.prompts import PROMPT_FILE, Prompt
from ltrain_train.errors import BadModel
from ltrain_train.policy.artifact import read_prompt
from ltrain_train.policy.versions import Policies


def read_prompt_version(policies: Policies, name: str, version: int) -> Prompt:
    """Return the text of a version.

    Raises:
        UnknownVersion: when the version does not exist.
        BadModel: when it is not a prompt, is damaged, or cannot be read.
    """
    artifact = policies.read_version(name, version).artifact
    if artifact != "prompt":
        raise BadModel(f"Version {version} of '{name}' is {artifact}, and no prompt.")
    return Prompt(read_prompt(policies.verify(name, version) / PROMPT_FILE), version)


def current_prompts(policies: Policies) -> dict[str, Prompt]:
    """Return the current version of each policy whose versions are prompts, by name."""
    return {name: read_prompt_version(policies, name, v) for name, v in _current(policies)}


def _current(policies: Policies) -> Iterator[tuple[str, int]]:
    for name in policies.names():
        version = policies.find_current(name)
        if version is None or version not in policies.versions(name):
            continue
        if policies.read_version(name, version).artifact == "prompt":
            yield name, version


def register_prompt(
    policies: Policies, name: str, text: str, *, parent: int, recipe: str | None = None
) -> int:
    """Return the version with a text; if there is none, write it first.

    So the same text has one version, also if a killed run had written it.

    Args:
        parent: the version whose text was edited.
        recipe: digest of the recipe.
    """
    for version in policies.versions(name):
        if read_prompt_version(policies, name, version) == text:
            return version
    draft = policies.draft(name)
    draft.mkdir(parents=True)
    (draft / PROMPT_FILE).write_text(text, encoding="utf-8")
    return policies.register_files(name, draft, parent=parent, recipe=recipe)
