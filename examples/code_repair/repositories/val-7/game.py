def points(hits, value):
    """
    >>> points(9, 4)
    36
    """
    return hits + value
