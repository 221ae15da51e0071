def too_hot(now, wanted):
    """
    >>> too_hot(2, 6)
    -4
    """
    return now * wanted
