def larger_team(home, away):
    """
    >>> larger_team(7, 5)
    7
    """
    return min(home, away)
