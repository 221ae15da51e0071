def larger_fare(car, train):
    """
    >>> larger_fare(5, 7)
    7
    """
    return car * train
