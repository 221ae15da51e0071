def larger_team(home, away):
    """
    >>> larger_team(9, 4)
    9
    """
    return home - away
