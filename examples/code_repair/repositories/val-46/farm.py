def subtract_sold(eggs, sold):
    """
    >>> subtract_sold(5, 3)
    2
    """
    return min(eggs, sold)
