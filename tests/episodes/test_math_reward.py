"""The reward of mathematics answers."""

import pytest

from ltrain_episodes import math_reward_fn


@pytest.mark.parametrize(
    ("response", "expected"),
    [
        (r"so \boxed{4}", "4"),
        (r"first \boxed{3}, no: \boxed{4}", 4),
        (r"\boxed{4.0}", "4"),
        (r"\boxed{\frac{1}{2}}", "0.5"),
        (r"\boxed{\dfrac{-3}{6}}", "-1/2"),
        (r"\boxed{-\frac{1}{2}}", "-0.5"),
        (r"\boxed{1,234,567}", "1234567"),
        (r"\boxed{\$ 5\text{ dollars}}", "5"),
        (r"\boxed{50\%}", "50"),
        (r"\boxed{x^2 + 1}", "x^2+1"),
        (r"\boxed{ \left( 1, 2 \right) }", "(1,2)"),
        (r"\boxed{\{1\}}", r"\boxed{\{1\}}"),
        (r"\boxed{B}.", ["A", "B"]),
        (r"\boxed{0.1}", "1/10"),
        (r"\boxed{" + "9" * 50 + "}", "9" * 50),
    ],
)
def test_an_answer_with_the_expected_value_is_right(response: str, expected: object) -> None:
    judged = math_reward_fn({"answer": expected}, response)
    assert (judged.reward, judged.is_correct) == (1.0, True), judged


@pytest.mark.parametrize(
    ("response", "expected"),
    [
        ("the answer is 4", "4"),
        (r"\boxed{5}", "4"),
        (r"\boxed{4", "4"),
        (r"\boxed{}", "4"),
        (r"\boxed{1/0}", "0"),
        (r"\boxed{1/0}", "2/0"),
        (r"\boxed{12}", "1,2"),
        (r"\boxed{9^{9^{9^9}}}", "4"),
        (r"\boxed{" + "{" * 5000 + "}" * 5000 + "}", "4"),
        (r"\boxed{" * 3000, "4"),
        (r"\boxed{nan}", "4"),
        (r"\boxed{1e3}", "1000"),
    ],
)
def test_another_answer_is_wrong(response: str, expected: object) -> None:
    judged = math_reward_fn({"ground_truth": expected}, response)
    assert (judged.reward, judged.is_correct) == (0.0, False), judged


def test_the_first_known_key_has_the_expected_answer() -> None:
    task = {"gold": "3", "answer": "2", "ground_truth": "1"}
    assert math_reward_fn(task, r"\boxed{1}").is_correct


def test_a_task_without_an_expected_answer_is_an_error() -> None:
    with pytest.raises(KeyError, match="ground_truth, answer, gold"):
        math_reward_fn({"question": "1 + 1"}, r"\boxed{2}")
