def dearest(first, second):
    """
    >>> dearest(3, 5)
    5
    """
    return first * second
