def dearest(first, second):
    """
    >>> dearest(8, 6)
    8
    """
    return first * second
