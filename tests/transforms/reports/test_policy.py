"""The lineage of a policy version, and the format of `policy.json`."""

import json
from pathlib import Path
from typing import TypeVar

import pytest

from ltrain_transforms.errors import NothingToShow
from ltrain_transforms.file_digests import FileDigest
from ltrain_transforms.policy_file import PolicyVersion
from ltrain_transforms.reports.references import Kind, Reference
from ltrain_transforms.reports.report import Chart, Command, Facts, Graph, Grid, Report
from ltrain_transforms.run_events import Evaluated, PolicyScore, Started
from ltrain_transforms.show import look_up

PartType = TypeVar("PartType")


def publish(home: Path, number: int, parent: int | None, dataset: str | None = None) -> None:
    """Write a version with the model that `Policies` uses."""
    folder = home / "policies" / "sql" / f"v{number}"
    folder.mkdir(parents=True)
    version = PolicyVersion(
        policy="sql",
        version=number,
        parent=parent,
        dataset=dataset or (f"d{number}" if number else None),
        recipe="r1" if number else None,
        created=1_790_000_000.5 + number,
        files={"model.safetensors": FileDigest(size=1_500_000, sha256="ab" * 32)},
    )
    (folder / "policy.json").write_text(version.model_dump_json(indent=2) + "\n")


def lineage(found: object) -> Grid:
    assert isinstance(found, Report)
    grids = (part for part in found.parts if isinstance(part, Grid))
    return next(grid for grid in grids if grid.title.startswith("Lineage"))


def versions(found: object) -> list[str]:
    """Return the first column of the lineage."""
    return [str(row[0]) for row in lineage(found).rows]


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """Four versions; version 3 was trained from 1, since 2 was rolled back."""
    for number, parent in ((0, None), (1, 0), (2, 1), (3, 1)):
        publish(tmp_path, number, parent)
    (tmp_path / "policies" / "sql" / "current").write_text("3\n")
    return tmp_path


def test_the_lineage_leads_back_to_version_0(home: Path) -> None:
    found = look_up("sql", home=home)
    assert found.title == "policy sql@3"
    v3, v1, v0 = (Reference(Kind.POLICY, f"sql@{number}", str(number)) for number in (3, 1, 0))
    d3, d1 = (Reference(Kind.DATASET, name) for name in ("d3", "d1"))
    assert lineage(found).rows == (
        (v3, v1, d3, "r1", "2026-09-21 14:13", "1.5 MB"),
        (v1, v0, d1, "r1", "2026-09-21 14:13", "1.5 MB"),
        (v0, None, None, None, "2026-09-21 14:13", "1.5 MB"),
    )
    older = look_up("policy:sql@2", home=home)
    assert older.title == "policy sql@2"
    assert versions(older) == ["2", "1", "0"]


def test_a_removed_parent_ends_the_lineage(home: Path) -> None:
    (home / "policies" / "sql" / "v1" / "policy.json").unlink()
    found = look_up("sql@3", home=home)
    assert versions(found) == ["3", "1"]
    assert lineage(found).rows[1][2] == "removed from this home"


def test_parents_that_go_in_a_circle_end_too(home: Path) -> None:
    path = home / "policies" / "sql" / "v0" / "policy.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"parent": 3}))
    assert versions(look_up("sql@3", home=home)) == ["3", "1", "0"]


def test_the_dataset_is_found_in_the_home(home: Path) -> None:
    folder = home / "datasets" / "demo-2"
    folder.mkdir(parents=True)
    (folder / "manifest.json").write_text('{"id": "d3"}')
    (home / "datasets" / "broken").mkdir()
    (home / "datasets" / "broken" / "manifest.json").write_text("{")
    found = look_up("sql@3", home=home)
    assert isinstance(found, Report)
    facts = found.parts[0]
    assert isinstance(facts, Facts)
    assert ("dataset", Reference(Kind.DATASET, "d3", f"d3 in {folder}")) in facts.rows


def test_an_adapter_is_named_with_its_base(home: Path) -> None:
    file = home / "policies" / "sql" / "v3" / "policy.json"
    version = PolicyVersion.model_validate_json(file.read_bytes())
    changed = version.model_copy(update={"artifact": "adapter", "base": 0})
    file.write_text(changed.model_dump_json())
    found = look_up("sql@3", home=home)
    assert isinstance(found, Report)
    facts = next(part for part in found.parts if isinstance(part, Facts))
    assert ("artifact", "adapter of v0") in facts.rows


def test_a_damaged_version_is_an_error(home: Path) -> None:
    path = home / "policies" / "sql" / "v3" / "policy.json"
    path.write_text('{"policy": "sql"}')
    with pytest.raises(NothingToShow, match=r"v3/policy\.json is not a valid policy\.json"):
        look_up("sql@3", home=home)


def test_the_docs_describe_every_field() -> None:
    page = (Path(__file__).parents[3] / "docs" / "policies.md").read_text()
    for key in [*PolicyVersion.model_fields, *FileDigest.__dataclass_fields__]:
        assert f"`{key}`" in page


def part(found: object, kind: type[PartType]) -> PartType:
    assert isinstance(found, Report)
    [one] = (one for one in found.parts if isinstance(one, kind))
    return one


def test_a_branch_has_a_lane_and_a_removed_version_has_no_page(home: Path) -> None:
    removed = home / "policies" / "sql" / "removed"
    removed.mkdir()
    (home / "policies" / "sql" / "v1").rename(removed / "v1")
    nodes = part(look_up("sql", home=home), Graph).nodes
    assert [(node.label, node.parent, node.lane, node.is_marked) for node in nodes] == [
        ("0", None, 0, False),
        ("1", 0, 0, False),
        ("2", 1, 0, False),
        ("3", 1, 1, True),
    ]
    assert [node.note for node in nodes] == ["v0", "v1, removed", "v2", "v3, served"]
    assert nodes[1].reference is None


def test_the_scores_of_versions_are_those_of_the_journals(home: Path) -> None:
    folder = home / "runs" / "demo"
    folder.mkdir(parents=True)
    started = Started(run="demo", recipe="r1", policies={"sql": 0})
    scored = [
        Evaluated(
            mode=mode,
            wave=wave,
            rollouts=2,
            outcomes={"ok": 2},
            evaluations={},
            policies={"sql": PolicyScore(version=wave, score=score, tasks=tasks)},
        )
        for mode, wave, score, tasks in (
            ("val", 0, 0.25, {"a": 0.0, "b": 0.5}),
            ("train", 1, 0.9, {"a": 0.9}),
            ("val", 3, 0.5, {"a": 0.5}),
        )
    ]
    lines = [event.model_dump_json() for event in (started, *scored)]
    (folder / "journal.jsonl").write_text("\n".join(lines) + "\n")
    (home / "runs" / "torn").mkdir()
    (home / "runs" / "torn" / "journal.jsonl").write_text("{not JSON\n")
    found = look_up("sql", home=home)
    chart = part(found, Chart)
    assert chart.series == (("score", ((0, 0.25), (3, 0.5))),)
    [(version, low, high)] = chart.bands["score"]
    assert version == 0
    assert (low, high) == pytest.approx((0.25 - 0.49, 0.25 + 0.49))
    assert part(found, Graph).nodes[-1].note == "v3, served, score 0.500"


def test_commands_for_a_version_are_those_of_the_program(home: Path) -> None:
    found = look_up("sql@1", home=home)
    assert isinstance(found, Report)
    [facts] = (one for one in found.parts if isinstance(one, Facts) and one.title == "Commands")
    assert dict(facts.rows)["serve it"] == Command("ltrain policy use sql@1")
    assert str(dict(facts.rows)["export it"]) == "ltrain policy export sql@1 sql-1"
