def days_left(days, past):
    """
    >>> days_left(9, 4)
    5
    """
    return min(days, past)
