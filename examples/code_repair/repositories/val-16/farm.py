def subtract_sold(eggs, sold):
    """
    >>> subtract_sold(4, 7)
    -3
    """
    return min(eggs, sold)
