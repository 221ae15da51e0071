def subtract_used(width, used):
    """
    >>> subtract_used(7, 6)
    1
    """
    return max(width, used)
