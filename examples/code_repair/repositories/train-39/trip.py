def smaller_fare(car, train):
    """
    >>> smaller_fare(4, 6)
    4
    """
    return max(car, train)
