"""Which version a call was of, by the name of its model and its time; rows of a whole build."""

from pathlib import Path
from typing import Any

import polars as pl
import pytest
from tests.otlp import insert_otlp
from tests.transforms.conftest import NOON
from tests.transforms.exports.conftest import Talks, question
from tests.transforms.exports.conftest import talks as talks  # a fixture
from tests.transforms.exports.conftest import tokenizer as tokenizer  # a fixture

from ltrain_collector.store import Store
from ltrain_transforms.datasets import Dataset, build, open_workers
from ltrain_transforms.policy_file import PolicyVersion, read_promotions, write_promotion
from ltrain_transforms.recipe import Recipe
from ltrain_transforms.rendering import BadTokenizer, ServedPolicy, find_served
from ltrain_transforms.reports.dataset import lineage_facts

HOUR = 3_600_000_000_000


def versions(policy: ServedPolicy, *calls: tuple[str, int]) -> list[int | None]:
    frame = pl.DataFrame(calls, {"model": pl.String, "start": pl.Int64}, orient="row")
    return frame.select(policy.version()).to_series().to_list()


def test_a_name_and_a_time_give_the_version() -> None:
    policy = ServedPolicy("sql", Path("x"), None, {"prod": 7}, ((100, 0), (200, 1), (300, 0)))
    calls = [("sql", at) for at in (50, 100, 199, 200, 350)]
    assert versions(policy, *calls) == [0, 0, 0, 1, 0]
    others = [("sql@3", 50), ("prod", 50), ("sql@x", 50), ("gpt-5", 50)]
    assert versions(policy, *others) == [3, 7, None, None]
    assert versions(ServedPolicy("sql", Path("x")), ("sql", 50)) == [0]


def write_version(folder: Path, number: int, created: float) -> None:
    (folder / f"v{number}").mkdir(parents=True)
    manifest = PolicyVersion(policy="sql", version=number, created=created, files={})
    (folder / f"v{number}" / "policy.json").write_text(manifest.model_dump_json())


def test_promotions_are_recorded_once_and_start_from_the_versions_there_are(
    tmp_path: Path,
) -> None:
    write_version(tmp_path, 0, 1.0)
    write_version(tmp_path, 1, 2.0)
    second = 1_000_000_000
    assert read_promotions(tmp_path) == [(second, 0), (2 * second, 1)]
    for at, version in ((3, 1), (4, 0), (5, 0), (6, 1)):
        write_promotion(tmp_path, at * second, version)
    expected = [(1, 0), (2, 1), (4, 0), (6, 1)]
    assert read_promotions(tmp_path) == [(at * second, version) for at, version in expected]


RECIPE: dict[str, Any] = {
    "source": {"run": "demo"},
    "policy": [{"name": "helper", "token_source": "rendered"}],
    "reward": [{"name": "answer", "evaluation": "reward"}],
}


@pytest.mark.parametrize("workers", [1, 2])
def test_a_dataset_of_a_service_without_the_gateway_has_rendered_rows(
    talks: Talks, scene: Any, store: Store, tokenizer: Path, tmp_path: Path, workers: int
) -> None:
    policy = tmp_path / "policies" / "helper"
    policy.mkdir(parents=True)
    (policy / "v0").symlink_to(tokenizer)
    write_promotion(policy, NOON - HOUR, 0)
    write_promotion(policy, NOON + 9 * HOUR, 1)
    recipe = Recipe.from_sections(RECIPE)
    for sample in range(4):
        talk = talks("t1", sample, *question("1 + 1?"))
        talk.answers("2")
        talk.ends(float(sample % 2))
    insert_otlp(store, scene.request())
    [served] = find_served(recipe, tmp_path / "policies", tmp_path)
    with open_workers(workers) as pool:
        made = build(store, recipe, tmp_path / "out", served=[served], workers=pool)
    rows = Dataset.open(made.path).table("samples")
    assert rows["tokens"].to_list() == ["rendered"] * 4
    assert rows["call_versions"].to_list() == [[0]] * 4
    assert not rows["advantages"].list.contains(0.0).any()
    manifest = made.manifest
    assert manifest["token_sources"] == {"rendered": 4}
    bias = manifest["rendered"]
    assert (bias["rows"], bias["left_out"]) == (4, {})
    assert "make bench-rendered" in bias["measured"]
    stated = dict(lineage_facts(manifest))["bias"]
    assert stated.startswith("4 rendered rows, left out: none")
    assert ServedPolicy.from_manifest("helper", served.tokenizer, manifest["served"]["helper"]) == (
        ServedPolicy("helper", served.tokenizer, None, {}, served.promotions)
    )


def test_a_recipe_needs_a_model_of_the_policy_and_its_template(
    tokenizer: Path, tmp_path: Path
) -> None:
    recipe = Recipe.from_sections(RECIPE)
    with pytest.raises(BadTokenizer, match="has no model of it"):
        find_served(recipe, tmp_path, tmp_path)
    [served] = find_served(recipe, tmp_path, tmp_path, {"helper": tokenizer})
    assert served.tokenizer == tokenizer
    templated = Recipe.from_sections(RECIPE | {"serve": {"chat_template": "own.jinja"}})
    with pytest.raises(BadTokenizer, match="cannot be read"):
        find_served(templated, tmp_path, tmp_path, {"helper": tokenizer})
    (tmp_path / "own.jinja").write_text("{{ messages }}")
    [served] = find_served(templated, tmp_path, tmp_path, {"helper": tokenizer})
    assert served.chat_template == "{{ messages }}"
    other = RECIPE | {"policy": [{"name": "helper"}]}
    assert find_served(Recipe.from_sections(other), tmp_path, tmp_path) == ()


def test_names_without_rendering_are_an_error() -> None:
    policy = {"name": "helper", "served_as": {"prod": 1}}
    with pytest.raises(ValueError, match="Set token_source"):
        Recipe.from_sections(RECIPE | {"policy": [policy]})
