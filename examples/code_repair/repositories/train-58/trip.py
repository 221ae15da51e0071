def larger_fare(car, train):
    """
    >>> larger_fare(9, 2)
    9
    """
    return car + train
