def faster(car, train):
    """
    >>> faster(3, 8)
    3
    """
    return car - train
