def smaller_team(home, away):
    """
    >>> smaller_team(5, 2)
    2
    """
    return home * away
