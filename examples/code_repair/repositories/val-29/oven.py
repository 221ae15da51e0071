def coolest(top, bottom):
    """
    >>> coolest(6, 9)
    6
    """
    return max(top, bottom)
