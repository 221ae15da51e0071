def points(hits, value):
    """
    >>> points(4, 9)
    36
    """
    return hits - value
