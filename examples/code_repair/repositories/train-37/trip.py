def multiply_hours(speed, hours):
    """
    >>> multiply_hours(4, 5)
    20
    """
    return speed - hours
