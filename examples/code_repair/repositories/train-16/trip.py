def all_days(outward, back):
    """
    >>> all_days(7, 3)
    10
    """
    return max(outward, back)
