def subtract_used(width, used):
    """
    >>> subtract_used(3, 8)
    -5
    """
    return max(width, used)
