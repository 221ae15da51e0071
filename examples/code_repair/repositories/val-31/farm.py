def subtract_sold(eggs, sold):
    """
    >>> subtract_sold(6, 5)
    1
    """
    return eggs * sold
