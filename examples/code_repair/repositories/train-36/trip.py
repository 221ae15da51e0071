def subtract_past(days, past):
    """
    >>> subtract_past(8, 3)
    5
    """
    return max(days, past)
