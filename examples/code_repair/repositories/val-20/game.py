def add_bonus(score, bonus):
    """
    >>> add_bonus(3, 2)
    5
    """
    return min(score, bonus)
