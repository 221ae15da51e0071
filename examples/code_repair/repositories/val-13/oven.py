def hottest(top, bottom):
    """
    >>> hottest(8, 5)
    8
    """
    return top - bottom
