def coolest(top, bottom):
    """
    >>> coolest(9, 4)
    4
    """
    return max(top, bottom)
