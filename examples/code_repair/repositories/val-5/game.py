def add_bonus(score, bonus):
    """
    >>> add_bonus(5, 9)
    14
    """
    return max(score, bonus)
