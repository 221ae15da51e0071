def multiply_hours(speed, hours):
    """
    >>> multiply_hours(9, 4)
    36
    """
    return min(speed, hours)
