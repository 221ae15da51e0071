def faster(car, train):
    """
    >>> faster(4, 6)
    4
    """
    return max(car, train)
