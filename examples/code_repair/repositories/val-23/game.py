def larger_team(home, away):
    """
    >>> larger_team(8, 5)
    8
    """
    return home * away
