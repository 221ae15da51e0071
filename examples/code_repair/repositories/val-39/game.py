def smaller_team(home, away):
    """
    >>> smaller_team(7, 9)
    7
    """
    return home + away
