def points(hits, value):
    """
    >>> points(6, 5)
    30
    """
    return hits - value
