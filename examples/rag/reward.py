"""The reward of a rollout: 0.9 times the F1 of the answer, and 0.1 times its format."""

import re
import string
from collections import Counter
from collections.abc import Mapping
from typing import Any

_ANSWER = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)
_CLOSED = ("yes", "no", "noanswer")
"""Answers that are right as a whole, or wrong."""


def score(task: Mapping[str, Any], result: Mapping[str, Any]) -> dict[str, float]:
    """Return `reward`, its parts `f1` and `format`, and `searched`, which only informs."""
    answer = extract_answer(result["output"])
    gold = [task["answer"], *task["answer_aliases"]]
    best = 0.0 if answer is None else max(f1(answer, each) for each in gold)
    well_formed = float(answer is not None)
    return {
        "reward": 0.9 * best + 0.1 * well_formed,
        "f1": best,
        "format": well_formed,
        "searched": float(bool(result["queries"])),
    }


def extract_answer(output: str) -> str | None:
    """Return what is in the answer's tag; None if there is not exactly one, or it is empty."""
    found = _ANSWER.findall(output)
    return found[0].strip() or None if len(found) == 1 else None


def f1(answer: str, gold: str) -> float:
    """Return the F1 of the words, as SQuAD and HotpotQA count it."""
    words, gold_words = normalise(answer).split(), normalise(gold).split()
    both = Counter(words) & Counter(gold_words)
    same = both.total()
    if not same or _differ_as_a_whole(words, gold_words):
        return 0.0
    precision, recall = same / len(words), same / len(gold_words)
    return 2 * precision * recall / (precision + recall)


def _differ_as_a_whole(words: list[str], gold_words: list[str]) -> bool:
    closed = " ".join(words) in _CLOSED or " ".join(gold_words) in _CLOSED
    return closed and words != gold_words


def normalise(text: str) -> str:
    """Return the text in lower case, without punctuation, articles and further whitespace."""
    bare = "".join(letter for letter in text.lower() if letter not in string.punctuation)
    return " ".join(re.sub(r"\b(a|an|the)\b", " ", bare).split())
