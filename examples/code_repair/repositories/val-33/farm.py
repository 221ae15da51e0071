def larger_barn(old, new):
    """
    >>> larger_barn(4, 8)
    8
    """
    return min(old, new)
