def coolest(top, bottom):
    """
    >>> coolest(5, 2)
    2
    """
    return top * bottom
