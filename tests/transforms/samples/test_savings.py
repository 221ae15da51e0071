from collections import Counter

from tests.transforms.talk import Talk, message

from ltrain_transforms.samples import count_savings


def talk(execution: str) -> Talk:
    made = Talk()
    made.call((1, 2), (3, 4), execution=execution)
    made.call((1, 2, 3, 4, 9, 9), (5,), execution=execution)
    made.call((1, 2, 8), (7,), execution=execution)
    return made


def test_merging_counts_a_shared_prompt_once() -> None:
    assert count_savings(talk("e1").samples()[0]) == {
        "calls": 3,
        "rows": 2,
        "prompt_tokens_unmerged": 2 + 6 + 3,
        "prompt_tokens_merged": 2 + 2 + 3,
        "begins_first": 1,
        "begins_unknown": 1,
    }


def test_the_figure_in_the_docs() -> None:
    drawn = Talk()
    system, user, tool, sub = 1, 2, 3, 4
    prompt = [message("user", "U")]
    drawn.call((system, user), (5, 5), messages=prompt, answer=message("assistant", "a"))
    drawn.call((system, user, 5, 5, tool), (6, 6, 6), answer=message("assistant", "b"))
    other = [message("user", "V")]
    drawn.call((system, sub), (7,), messages=other, answer=message("assistant", "c"))
    drawn.call((system, user, 5, 5, tool, 6, 6, 6, 8), (9,))
    drawn.calls[1]["input"] = drawn.calls[0]["input"]
    frame, _ = drawn.samples()
    assert frame["response_mask"].to_list() == [[1, 1, 0, 1, 1, 1, 0, 1], [1]]
    assert count_savings(frame) == {
        "calls": 4,
        "rows": 2,
        "prompt_tokens_unmerged": 18,
        "prompt_tokens_merged": 6,
        "begins_conversation": 1,
        "begins_first": 1,
    }


def test_masked_tokens_count_as_prompt_tokens() -> None:
    long = Talk()
    long.call((1,), range(2, 302))
    assert count_savings(long.samples()[0])["prompt_tokens_merged"] == 1


def test_counts_of_parts_add_up() -> None:
    both = Talk([*talk("e1").calls, *talk("e2").calls])
    parts = Counter(count_savings(talk("e1").samples()[0])) + Counter(
        count_savings(talk("e2").samples()[0])
    )
    assert count_savings(both.samples()[0]) == dict(parts)


def test_without_calls_all_counts_are_zero() -> None:
    counts = count_savings(Talk().samples()[0])
    assert counts == dict.fromkeys(
        ("calls", "rows", "prompt_tokens_unmerged", "prompt_tokens_merged"), 0
    )
