"""The generated pages are up to date, and the docs describe everything that code declares."""

import re
from pathlib import Path
from typing import Any, get_args, get_origin

import pytest
import typer
from pydantic import BaseModel
from setup import reference

from ltrain.cli import app
from ltrain_collector.signals import SIGNALS
from ltrain_instrument import attributes
from ltrain_instrument.settings import SETTINGS
from ltrain_transforms import tables
from ltrain_transforms.calls import membership, span_errors
from ltrain_transforms.dialects import BY_PRECEDENCE
from ltrain_transforms.estimators import ESTIMATORS, STEP_ESTIMATORS, Estimator
from ltrain_transforms.exports import FORMATS, REASONS
from ltrain_transforms.recipe import REWARD_KINDS, Credit, Credited, Peers, Recipe, Reward, credit
from ltrain_transforms.samples import SplitReason, row_filters
from ltrain_transforms.source import trained_calls
from ltrain_transforms.tables import TABLES, Table

DOCS = Path(__file__).parents[2] / "docs"


def rows(page: str) -> dict[str, list[str]]:
    """Return the other cells of every table row of a page, by its first cell without backquotes."""
    lines = re.findall(r"^\| (.+) \|$", (DOCS / page).read_text(), re.MULTILINE)
    cells = [re.split(r" (?<!\\)\| ", line) for line in lines]
    return {first.strip("`"): others for first, *others in cells}


def test_generated_pages_are_up_to_date() -> None:
    assert reference.stale_pages() == [], "run `make docs`"


def test_every_kind_of_reward_and_signal_is_documented() -> None:
    kinds = rows("rules.md")
    assert all(kinds[kind] for kind in REWARD_KINDS)
    views, tables = rows("store.md"), (DOCS / "store.md").read_text()
    for signal in SIGNALS:
        assert rows("collector.md")[signal.name] == [f"`{signal.path}`", f"`{signal.service}`"]
        names = "`, `".join(table.view for table in signal.tables)
        assert views[names] == [signal.doc]
        assert all(f"`{table.name}`" in tables for table in signal.tables)


def test_every_setting_is_documented() -> None:
    assert {each.name for each in SETTINGS} <= rows("settings.md").keys()


def test_every_command_is_documented_with_an_example() -> None:
    text = (DOCS / "commands.md").read_text()
    for name, _ in reference.commands_of(typer.main.get_command(app)):
        part = text.split(f"## ltrain {name}\n")[1].split("\n## ")[0]
        assert f"```bash\nltrain {name}" in part, f"the help of {name} has no example"


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.name)
def test_every_column_is_documented(table: Table) -> None:
    text = (DOCS / "tables.md").read_text().split(f"## {table.name}\n")[1].split("\n## ")[0]
    assert all(f"| `{column.name}` |" in text for column in table.columns)


def test_every_column_of_signals_is_in_the_page_of_rules() -> None:
    text = (DOCS / "rules.md").read_text()
    section = text[text.index("## Rules over signals") : text.index("## Rules over executions")]
    columns = [column.name for column in tables.SIGNALS.columns if column.name != "execution_id"]
    assert [name for name in columns if f"`{name}`" not in section] == []


def test_every_recipe_key_is_documented_with_its_meaning() -> None:
    documented = rows("recipe.md")
    keys = [key for name in ("source", "filter", "train") for key in keys_below(Recipe, name)]
    assert len(keys) > 60
    assert [key for key in keys if not documented[key][-1]] == [], "they have no docstring"


def keys_below(section: type[BaseModel], name: str) -> list[str]:
    """Return the keys of a section's key, itself if it is no section; a section may be absent."""
    annotation = section.model_fields[name].annotation
    choices = get_args(annotation) or (annotation,)
    [inner, *others] = [each for each in choices if each not in (type(None), ...)]
    if others:
        return [name]
    if not (isinstance(inner, type) and issubclass(inner, BaseModel)):
        return [name]
    return [key for each in inner.model_fields for key in keys_below(inner, each)]


@pytest.mark.parametrize(
    "page", [*DOCS.rglob("*.md"), DOCS.parent / "README.md"], ids=lambda page: page.name
)
def test_every_recipe_key_that_a_page_names_exists(page: Path) -> None:
    keys = {
        name: model.model_fields.keys()
        for name, field in Recipe.model_fields.items()
        if get_origin(field.annotation) not in (list, tuple)  # no section, but a file: `reward.py`
        for model in (field.annotation, *get_args(field.annotation))
        if isinstance(model, type) and issubclass(model, BaseModel)
    }
    text = page.read_text().replace("`prompt.txt`", "")
    named = re.findall(rf"`({'|'.join(keys)})\.(\w+)`", text)
    assert [f"{section}.{key}" for section, key in named if key not in keys[section]] == []


def test_every_rule_kind_and_credit_is_documented() -> None:
    documented = rows("recipe.md")
    rules = (DOCS / "recipe.md").read_text().split("## `[[reward]]`")[1]
    [on] = re.findall(r"^\| `on` \| (.+?) \|", rules.split("\n## ")[0], re.MULTILINE)
    assert all(kind in on for kind in ("llm", "tool", "retrieval", "embedding", "node"))
    assert {*Credited, *Peers} <= documented.keys()
    assert {field.alias or name for name, field in Reward.model_fields.items()} <= documented.keys()


def test_every_dialect_is_documented_with_the_reasons_of_its_drops() -> None:
    documented = rows("dialects.md")
    for dialect in BY_PRECEDENCE:
        assert documented[dialect.name][:2] == [dialect.written_by, dialect.read_from]
        assert dialect.written_by and dialect.read_from
    assert {*membership.REASONS, *span_errors.SPAN_REASONS} <= rows_of("tables.md", "spans")
    assert set(span_errors.ATTRIBUTE_REASONS) <= rows_of("tables.md", "calls")


def test_reasons_filters_and_exports_are_documented() -> None:
    page = (DOCS / "samples.md").read_text()
    documented = rows("samples.md").keys() | set(re.findall(r"`(\w+)`", page))
    assert {*SplitReason, *FORMATS} <= documented
    assert set(row_filters.REASONS) <= rows_of("tables.md", "rows")
    assert set(trained_calls.REASONS) <= rows_of("tables.md", "executions")
    assert set(REASONS) <= rows_of("tables.md", "exports")


def rows_of(page: str, stage: str) -> set[str]:
    """Return the reasons that a page lists for one stage."""
    return set(re.findall(rf"^\| {stage} \| `(\w+)`", (DOCS / page).read_text(), re.MULTILINE))


def test_every_estimator_is_documented_with_its_equation_paper_and_use() -> None:
    documented = rows("credit.md")
    estimators: dict[str, Estimator[Any]] = {**ESTIMATORS, **STEP_ESTIMATORS}
    for name, estimator in estimators.items():
        assert documented[name] == [estimator.equation, estimator.paper, estimator.use]
        source = re.search(
            r"arXiv [0-9.]+[0-9]|[A-Z][a-z]+ \d{4}", estimator.function.__doc__ or ""
        )
        assert source is not None and source[0] in estimator.paper, name
        assert "=" in estimator.equation and estimator.use, name


def test_every_key_of_credit_is_documented() -> None:
    documented, keys = rows("recipe.md"), set(Credit.model_fields) - {"outcome", "process", "step"}
    for name in ("Outcome", "Process", "Step"):
        keys |= set(getattr(credit, name).model_fields)
    assert [key for key in sorted(keys) if not documented[key][-1]] == []


def test_every_attribute_is_documented() -> None:
    names = {value for name, value in vars(attributes).items() if name.isupper()}
    assert names <= rows("attributes.md").keys()


def test_index_names_every_page_and_links_are_valid() -> None:
    index = (DOCS / "README.md").read_text()
    pages = {path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md")} - {"README.md"}
    assert [page for page in sorted(pages) if f"]({page})" not in index] == []
    for path in [*DOCS.rglob("*.md"), DOCS.parent / "README.md", DOCS.parent / "CONTRIBUTING.md"]:
        links = re.findall(r"\]\((?!https?:|#)([^)#]+)", path.read_text())
        assert [link for link in links if not (path.parent / link).exists()] == [], path.name
