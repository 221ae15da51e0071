def unsold(eggs, sold):
    """
    >>> unsold(7, 2)
    5
    """
    return max(eggs, sold)
