def subtract_sold(eggs, sold):
    """
    >>> subtract_sold(7, 2)
    5
    """
    return max(eggs, sold)
