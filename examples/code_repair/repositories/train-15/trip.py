def distance(speed, hours):
    """
    >>> distance(9, 4)
    36
    """
    return min(speed, hours)
