def hottest(top, bottom):
    """
    >>> hottest(2, 4)
    4
    """
    return top * bottom
