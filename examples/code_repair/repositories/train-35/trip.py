def distance(speed, hours):
    """
    >>> distance(4, 5)
    20
    """
    return speed - hours
