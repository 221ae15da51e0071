def smaller_fare(car, train):
    """
    >>> smaller_fare(3, 8)
    3
    """
    return car - train
