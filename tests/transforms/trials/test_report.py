"""The report on the versions that users meet: stages, both sides, bounds over time, other rules."""

import json
from pathlib import Path

import pytest
from tests.transforms.trials.test_stored import Calls

from ltrain_collector.errors import StoreUnreachable
from ltrain_collector.store import Store
from ltrain_transforms.deployment_file import Deployment, Stage, record_deployment
from ltrain_transforms.errors import NothingToShow
from ltrain_transforms.recipe import Deploy
from ltrain_transforms.reports import Chart, Facts, Grid, Reference, Report
from ltrain_transforms.trials import deployment_report

BEGAN = 1_000_000.0
END = BEGAN + 4 * 3600
UNITS = 400
OPTIONS = Deploy(goal="thumbs", max_loss=0.1, reward_window=0.0)
AWAY = StoreUnreachable("The store does not answer.")


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A policy whose version 2 was retired, and whose version 3 is watched after a canary."""
    folder = tmp_path / "policies" / "sql"
    folder.mkdir(parents=True)
    (folder / "current").write_text("3")
    canary = Deployment.begin(2, 0.2, by="ltrain")
    retired = canary.move(Stage.RETIRED, by="ltrain", reason="worse")
    candidate = Deployment.begin(3, by="ada", stage=Stage.CANDIDATE)
    admitted = candidate.move(Stage.CANARY, share=0.5, by="ada")
    watched = admitted.watch(1, 0.9, by="ada")
    for stage, experiment, at, began in (
        (canary, "one", BEGAN - 100, BEGAN - 100),
        (retired, "one", BEGAN - 60, BEGAN - 100),
        (candidate, "two", BEGAN - 50, BEGAN - 50),
        (admitted, "two", BEGAN, BEGAN),
        (watched, "three", END, END),
    ):
        dated = {"experiment": experiment, "at": at, "began": began}
        record_deployment(folder, stage.model_copy(update=dated))
    return tmp_path


def insert_trial(store: Store) -> None:
    """Insert a trial of four hours: 0.9 of the thumbs of the candidate are up, else 0.5."""
    calls = Calls("two")
    for number in range(UNITS):
        at = BEGAN + number * (END - BEGAN) / UNITS
        calls.call("candidate", f"a{number}", float(number % 10 != 9), at=at)
        calls.call("current", f"b{number}", float(number % 2), at=at)
    calls.insert(store)


def charts(report: Report) -> dict[str, Chart]:
    return {part.title: part for part in report.parts if isinstance(part, Chart)}


def grids(report: Report) -> dict[str, Grid]:
    return {part.title: part for part in report.parts if isinstance(part, Grid)}


def test_a_trial_has_both_sides_and_the_course_of_its_bounds(home: Path, store: Store) -> None:
    insert_trial(store)
    report = deployment_report(home, "sql", OPTIONS, store, "two")
    metrics = {each["metric"]: each for each in report.data["metrics"]}
    ours = ["thumbs", "failed calls", "units with feedback"]
    assert list(metrics) == [*ours, "seconds of a call"], "the goal and its guards come first"
    thumbs = metrics["thumbs"]
    assert thumbs["units"] == [UNITS, UNITS]
    assert (thumbs["candidate"], thumbs["current"]) == (0.9, 0.5)
    assert 0.2 < thumbs["lower"] < 0.4 < thumbs["upper"] < 0.6
    course = charts(report)["thumbs: the candidate minus the current version"]
    assert course.x_label == "hours since the trial began"
    lines = {name: dict(points) for name, points in course.series}
    assert list(lines) == ["difference", "lower", "upper"]
    assert max(lines["lower"]) == pytest.approx(4.0)
    known = [at for at, bound in lines["lower"].items() if bound == bound]
    assert min(known) == pytest.approx(0.5), "50 units of a side are needed"
    widths = [lines["upper"][at] - lines["lower"][at] for at in known]
    assert widths == sorted(widths, reverse=True)
    [candidate, current] = charts(report)["Units of both sides"].series
    assert candidate[1][-1][1] == current[1][-1][1] == UNITS
    assert json.loads(json.dumps(report.data))["trials"] == ["one", "two", "three"]


def test_other_bounds_would_have_decided_at_another_time(home: Path, store: Store) -> None:
    insert_trial(store)
    report = deployment_report(home, "sql", OPTIONS, store, "two")
    bounds = {each["bounds"]: each for each in report.data["bounds"]}
    assert list(bounds) == ["[deploy]", "alpha = 0.01", "alpha = 0.1", "max_loss = 0", "no guards"]
    assert {each["decision"] for each in bounds.values()} == {"promote"}
    units = [bounds[name]["units of the candidate"] for name in ("no guards", "alpha = 0.01")]
    assert units[0] <= bounds["[deploy]"]["units of the candidate"] <= units[1]
    assert units[0] < UNITS
    harsh = OPTIONS.model_copy(update={"min_gain": 0.6})
    report = deployment_report(home, "sql", harsh, store, "two")
    bounds = {each["bounds"]: each for each in report.data["bounds"]}
    assert bounds["[deploy]"]["decision"] == "go on"
    assert bounds["[deploy]"]["units of the candidate"] is None
    assert bounds["min_gain = 0"]["decision"] == "promote"


def test_the_evidence_is_a_link_to_each_trace(home: Path, store: Store) -> None:
    insert_trial(store)
    report = deployment_report(home, "sql", OPTIONS, store, "two")
    rows = grids(report)["Executions with the least thumbs"].rows
    assert [row[0] for row in rows] == ["candidate"] * 5 + ["current"] * 5
    assert all(isinstance(row[1], Reference) and row[2] == 0.0 for row in rows)


def test_the_stages_are_there_without_a_store(home: Path) -> None:
    report = deployment_report(home, "sql", OPTIONS, AWAY)
    [facts] = [part for part in report.parts if isinstance(part, Facts)]
    named = {name: str(fact) for name, fact in facts.rows}
    assert named["current"] == "v3"
    assert named["on trial"].startswith("v3 is watched: v1 answers 0.1 of the conversations, since")
    assert named["not compared"] == "the store cannot be read: The store does not answer."
    stages = grids(report)["Stages, newest first"].rows
    assert [(str(row[1]), row[2], row[3]) for row in stages] == [
        ("v3", "watched", "0.9"),
        ("v3", "canary", "0.5"),
        ("v3", "candidate", None),
        ("v2", "retired", None),
        ("v2", "canary", "0.2"),
    ]


def test_a_trial_without_calls_says_so(home: Path, store: Store) -> None:
    report = deployment_report(home, "sql", OPTIONS, store)
    assert Facts("Trial", (("calls", "none has arrived in the store yet"),)) in report.parts
    assert report.data["metrics"] == []


def test_an_unknown_trial_is_an_error(home: Path, store: Store) -> None:
    with pytest.raises(NothingToShow, match=r"The policy has no trial four\."):
        deployment_report(home, "sql", OPTIONS, store, "four")


def test_a_policy_without_trials_has_its_current_version(tmp_path: Path) -> None:
    folder = tmp_path / "policies" / "sql"
    folder.mkdir(parents=True)
    (folder / "current").write_text("0")
    report = deployment_report(tmp_path, "sql", OPTIONS, AWAY)
    assert report.parts[-1] == Grid(
        "Stages, newest first",
        ("time (UTC)", "version", "stage", "share", "by", "reason"),
        (),
        "no version was a candidate yet",
    )
    assert report.data["trials"] == [] and "fault" not in report.data
