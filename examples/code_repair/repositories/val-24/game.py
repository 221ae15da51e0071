def smaller_team(home, away):
    """
    >>> smaller_team(4, 6)
    4
    """
    return max(home, away)
