def add_bonus(score, bonus):
    """
    >>> add_bonus(2, 6)
    8
    """
    return score - bonus
