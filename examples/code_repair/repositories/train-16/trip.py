def subtract_past(days, past):
    """
    >>> subtract_past(7, 3)
    4
    """
    return max(days, past)
