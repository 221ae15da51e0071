def subtract_used(width, used):
    """
    >>> subtract_used(4, 3)
    1
    """
    return min(width, used)
