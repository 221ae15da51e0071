"""The page of a policy's deployment, without a browser: its charts, tables, links and errors."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from starlette.testclient import TestClient
from tests.otlp import open_empty_store
from tests.transforms.reports.test_policy import publish
from tests.transforms.trials.test_report import home as home  # a fixture
from tests.transforms.trials.test_report import insert_trial

from ltrain_transforms.errors import NothingToShow
from ltrain_ui.app import make_open_app
from ltrain_ui.sources import Sources

RECIPE = """
[[policy]]
name = "sql"
[[reward]]
name = "thumbs"
evaluation = "thumbs"
from = "any"
[deploy]
goal = "thumbs"
reward_window = 0.0
"""


@pytest.fixture
def pages(home: Path) -> Iterator[TestClient]:
    for version in (1, 2, 3):
        publish(home, version, version - 1 or None)
    recipe = home / "ltrain.toml"
    recipe.write_text(RECIPE)
    with open_empty_store(home / "store") as store:
        insert_trial(store)
    with Sources(f"chdb://{home}/store", home, recipe) as sources:
        yield TestClient(make_open_app(sources))


def test_the_page_of_a_version_leads_to_the_trials(pages: TestClient) -> None:
    assert '<a href="/policies/sql/deployment" data-key="d">' in pages.get("/policies/sql@3").text
    last = pages.get("/policies/sql/deployment").text
    assert "none has arrived in the store yet" in last
    before = "/policies/sql/deployment?experiment=two"
    assert f'<a href="{before}" data-key="k">Trial before (K)</a>' in last
    assert "Next trial" not in last
    page = pages.get(before).text
    assert page.count("<figure>") == 5  # the units, and four metrics
    assert "thumbs: the candidate minus the current version" in page
    assert "v3 is watched: v1 answers 0.1 of the conversations" in page
    assert 'data-key="k">Trial before' in page and 'data-key="j">Next trial' in page
    assert page.count('<a href="/traces/') == 10


def test_the_overview_names_the_version_on_trial(pages: TestClient) -> None:
    assert "3, watched" in pages.get("/").text


def test_a_store_that_is_away_leaves_the_stages(home: Path, pages: TestClient) -> None:
    with Sources("http://127.0.0.1:9", home, home / "ltrain.toml") as sources:
        page = TestClient(make_open_app(sources)).get("/policies/sql/deployment").text
    assert "the store cannot be read: " in page and "Stages, newest first" in page


@pytest.mark.parametrize("address", ["none/deployment", "sql/deployment?experiment=four"])
def test_an_unknown_policy_or_trial_is_named(pages: TestClient, address: str) -> None:
    with pytest.raises(NothingToShow, match=r"There is no policy 'none'|has no trial four"):
        pages.get(f"/policies/{address}")
