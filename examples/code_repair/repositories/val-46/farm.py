def unsold(eggs, sold):
    """
    >>> unsold(5, 3)
    2
    """
    return min(eggs, sold)
