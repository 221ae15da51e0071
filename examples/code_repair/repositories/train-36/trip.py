def all_days(outward, back):
    """
    >>> all_days(8, 3)
    11
    """
    return max(outward, back)
