def slower(car, train):
    """
    >>> slower(2, 9)
    9
    """
    return min(car, train)
