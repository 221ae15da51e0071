def hottest(top, bottom):
    """
    >>> hottest(4, 9)
    9
    """
    return top * bottom
