def dearest(first, second):
    """
    >>> dearest(6, 7)
    7
    """
    return first * second
