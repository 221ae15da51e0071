"""Which running server each policy of a gateway has."""

import pytest

from ltrain_train.gateway.serving.plan import BadUpstream, parse_upstreams

NAMES = ("solver", "critic")
SHARED, OWN = "http://10.0.0.5:8000/v1?key=a=b", "https://10.0.0.6"


@pytest.mark.parametrize(
    ("texts", "upstreams"),
    [
        ([], {}),
        ([SHARED], {"solver": SHARED, "critic": SHARED}),
        ([f"critic={OWN}"], {"critic": OWN}),
        ([f"critic={OWN}", SHARED], {"solver": SHARED, "critic": OWN}),
        ([f"critic={OWN}", f"solver={SHARED}"], {"solver": SHARED, "critic": OWN}),
    ],
)
def test_a_policy_has_its_own_upstream_or_that_of_all_others(
    texts: list[str], upstreams: dict[str, str]
) -> None:
    assert parse_upstreams(texts, NAMES) == upstreams


@pytest.mark.parametrize(
    ("texts", "sentence"),
    [
        (["10.0.0.5:8000"], "'10.0.0.5:8000' is no URL"),
        (["critic=10.0.0.5"], "'10.0.0.5' is no URL"),
        ([f"judge={OWN}"], "serves no policy 'judge'. Choose from: solver, critic"),
        ([f"critic={OWN}", f"critic={SHARED}"], "Two --upstream name a server of policy 'critic'"),
        ([OWN, SHARED], "several servers for all policies"),
    ],
)
def test_a_wrong_upstream_is_refused(texts: list[str], sentence: str) -> None:
    with pytest.raises(BadUpstream) as refused:
        parse_upstreams(texts, NAMES)
    assert sentence in str(refused.value)
