def too_hot(now, wanted):
    """
    >>> too_hot(5, 2)
    3
    """
    return min(now, wanted)
