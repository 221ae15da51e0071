"""`ltrain.show` in a program and in a notebook."""

from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from tests.otlp import insert_otlp
from tests.transforms.show.pages.test_page import EVIL

import ltrain
from ltrain_collector.store import Store
from ltrain_instrument.errors import UnknownName
from ltrain_transforms.errors import NothingToShow


@pytest.fixture
def filled(scene: Any, store: Store, recipe_file: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    monkeypatch.chdir(recipe_file.parent)
    monkeypatch.setenv("LTRAIN_HOME", str(recipe_file.parent / ".ltrain"))
    for sample in range(2):
        rollout = scene.attempt("t1", sample)
        rollout.dispatch()
        rollout.llm("write", text=EVIL)
        rollout.evaluate(float(sample))
        rollout.close()
    insert_otlp(store, scene.request())
    return store


def test_a_run_has_frames(filled: Store) -> None:
    run = ltrain.show("run:demo", filled)
    assert run.frame("Waves").select("wave", "policy", "rollouts").rows() == [
        ("train 0", "sql@0", 2)
    ]
    assert repr(run).startswith("<run demo; frames: Waves, Look at, Evaluations in training")
    with pytest.raises(UnknownName, match=r"Unknown table 'waves'.*Did you mean 'Waves'"):
        run.frame("waves")


def test_a_rollout_has_its_derived_tables(filled: Store, scene: Any) -> None:
    rollout = ltrain.show(scene.attempts[0].rollout, filled)
    assert {"calls", "rewards", "samples", "drops"} <= set(rollout.frames)
    kinds = rollout.frame("calls").sort("seq")["kind"].to_list()
    assert kinds == ["node", "llm"]
    with pytest.raises(NothingToShow):
        ltrain.show("nothing", filled)


def test_a_notebook_displays_the_page_in_a_frame_of_its_own(filled: Store, scene: Any) -> None:
    text = ltrain.show(scene.attempts[0].rollout, filled)._repr_html_()
    tags: list[tuple[str, dict[str, str | None]]] = []

    class Outer(HTMLParser):
        def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
            tags.append((tag, dict(attrs)))

    Outer().feed(text)
    ((tag, attributes),) = tags  # whatever the trace says stays inside
    assert (tag, attributes["sandbox"]) == ("iframe", "allow-scripts")
    assert "<!doctype html>" in str(attributes["srcdoc"])
