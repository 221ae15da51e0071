import pytest

from ltrain_collector.errors import Overloaded
from ltrain_collector.http.budget import MemoryBudget


def test_what_is_here_is_counted_until_it_is_left() -> None:
    budget = MemoryBudget(100)
    with budget.buffer() as one:
        one.add(b"12345")
        one.add(b"678")
        assert budget.in_use == 8
        assert one.body() == b"12345678"
        one.resize(20)
        assert budget.in_use == 20
        one.resize(3)
        assert budget.in_use == 3
    assert budget.in_use == 0
    assert one.size == 8


def test_beyond_the_memory_limit_clients_are_told_to_retry() -> None:
    budget = MemoryBudget(10)
    with budget.buffer() as one:
        one.add(b"12345678")
        with budget.buffer() as other, pytest.raises(Overloaded, match="try again"):
            other.add(b"123")
        with pytest.raises(Overloaded):
            budget.admit(3)
        budget.admit(2)
        assert budget.in_use == 8
    budget.admit(10)
