def distance(speed, hours):
    """
    >>> distance(2, 6)
    12
    """
    return speed - hours
