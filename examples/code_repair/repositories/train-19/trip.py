def smaller_fare(car, train):
    """
    >>> smaller_fare(5, 8)
    5
    """
    return car * train
