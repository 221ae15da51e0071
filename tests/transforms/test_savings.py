from collections import Counter

from tests.transforms.talk import Talk

from ltrain_transforms.savings import savings


def talk(execution: str) -> Talk:
    made = Talk()
    made.call((1, 2), (3, 4), execution=execution)
    made.call((1, 2, 3, 4, 9, 9), (5,), execution=execution)
    made.call((1, 2, 8), (7,), execution=execution)
    return made


def test_each_calls_prompt_is_counted_once_or_as_often_as_it_is_computed() -> None:
    assert savings(talk("e1").samples()[0]) == {
        "calls": 3,
        "rows": 2,
        "prompt_tokens_unmerged": 2 + 6 + 3,
        "prompt_tokens_merged": 2 + 2 + 3,
        "begins_first": 1,
        "begins_unknown": 1,
    }


def test_a_masked_token_is_a_prompts_whatever_its_row() -> None:
    long = Talk()
    long.call((1,), range(2, 302))
    assert savings(long.samples()[0])["prompt_tokens_merged"] == 1


def test_parts_add_up_to_the_whole() -> None:
    both = Talk([*talk("e1").calls, *talk("e2").calls])
    parts = Counter(savings(talk("e1").samples()[0])) + Counter(savings(talk("e2").samples()[0]))
    assert savings(both.samples()[0]) == dict(parts)


def test_of_nothing_nothing_was_saved() -> None:
    counts = savings(Talk().samples()[0])
    assert counts == dict.fromkeys(
        ("calls", "rows", "prompt_tokens_unmerged", "prompt_tokens_merged"), 0
    )
