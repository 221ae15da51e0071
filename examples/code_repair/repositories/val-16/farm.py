def unsold(eggs, sold):
    """
    >>> unsold(4, 7)
    -3
    """
    return min(eggs, sold)
