from collections.abc import Callable
from typing import Any

import pytest
from tests.transforms.exports.conftest import Talks, converted, lines, message, question

from ltrain_transforms.datasets import Dataset
from ltrain_transforms.exports import ExportOptions
from ltrain_transforms.exports.preferences import export_preferences

Built = Callable[..., Dataset]


def reasons(drops: Any) -> dict[str, str]:
    return dict(drops.select("id", "reason").iter_rows())


def once(talks: Talks, sample: int, text: str, reward: float, task: str = "t1") -> str:
    talk = talks(task, sample, *question("1 + 1?"))
    talk.answers(text)
    return talk.ends(reward).execution


def test_the_best_and_the_worst_answer_to_the_same_are_a_pair(talks: Talks, built: Built) -> None:
    ids = [once(talks, n, text, r) for n, (text, r) in enumerate([("3", 0), ("2", 1), ("?", 0.5)])]
    made = converted(export_preferences, built(), ExportOptions())
    assert made.rows == [
        {
            "prompt": [
                {"role": "system", "content": "You help."},
                {"role": "user", "content": "1 + 1?"},
            ],
            "chosen": [{"role": "assistant", "content": "2"}],
            "rejected": [{"role": "assistant", "content": "3"}],
        }
    ]
    assert made.lineage == [[ids[1], ids[0]]]
    assert reasons(made.drops) == {ids[2]: "not_paired"}


def test_more_pairs_are_made_by_option(talks: Talks, built: Built) -> None:
    for n, (text, reward) in enumerate([("3", 0.0), ("2", 1.0), ("?", 0.5)]):
        once(talks, n, text, reward)
    made = converted(export_preferences, built(), ExportOptions(pairs=9))
    pairs = [(row["chosen"][0]["content"], row["rejected"][0]["content"]) for row in lines(made)]
    assert pairs == [("2", "3"), ("2", "?"), ("?", "3")]
    assert made.drops.is_empty()


def test_the_prompt_is_the_common_history(talks: Talks, built: Built) -> None:
    for sample, last in enumerate(("wrong", "right")):
        talk = talks("t1", sample, *question("1 + 1?"))
        talk.answers("let me see")
        talk.hears(message("user", "do")).answers(last)
        talk.ends(float(sample))
    (line,) = lines(converted(export_preferences, built(), ExportOptions()))
    assert [one["content"] for one in line["prompt"]][-2:] == ["let me see", "do"]
    assert (line["chosen"][0]["content"], line["rejected"][0]["content"]) == ("right", "wrong")


def test_rollouts_that_differ_in_a_user_message_are_no_pair(talks: Talks, built: Built) -> None:
    ids = []
    for sample, heard in enumerate(("it rains", "it snows")):
        talk = talks("t1", sample, *question("weather?"))
        talk.answers("let me see")
        talk.hears(message("user", heard)).answers(heard)
        ids.append(talk.ends(float(sample)).execution)
    made = converted(export_preferences, built(), ExportOptions())
    assert (made.rows, reasons(made.drops)) == ([], dict.fromkeys(ids, "no_fork"))


def test_an_answer_is_not_set_against_an_example_of_a_prompt(talks: Talks, built: Built) -> None:
    plain, shown = question("1 + 1?"), (message("assistant", "4"), message("user", "now you"))
    for sample, heard in enumerate(((*plain, *shown), plain, (*plain, *shown))):
        talk = talks("t1", sample, *heard)
        talk.answers(f"{sample}")
        talk.ends(float(sample))
    (pair,) = lines(converted(export_preferences, built(), ExportOptions(pairs=9)))
    assert [one["content"] for one in pair["prompt"]][-1] == "now you"


@pytest.mark.parametrize(
    ("rewards", "reason"), [([1.0], "alone"), ([1.0, 1.0], "no_difference")], ids=str
)
def test_a_rollout_without_a_worse_or_better_peer_is_a_drop(
    talks: Talks, built: Built, rewards: list[float], reason: str
) -> None:
    ids = [once(talks, n, str(n), reward) for n, reward in enumerate(rewards)]
    made = converted(export_preferences, built(), ExportOptions())
    assert (made.rows, reasons(made.drops)) == ([], dict.fromkeys(ids, reason))


def test_groups_are_not_mixed(talks: Talks, built: Built) -> None:
    once(talks, 0, "2", 1.0, "a")
    once(talks, 0, "3", 0.0, "b")
    assert converted(export_preferences, built(), ExportOptions()).rows == []
