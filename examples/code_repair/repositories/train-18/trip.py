def larger_fare(car, train):
    """
    >>> larger_fare(2, 9)
    9
    """
    return min(car, train)
