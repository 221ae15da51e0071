def days_left(days, past):
    """
    >>> days_left(4, 5)
    -1
    """
    return min(days, past)
