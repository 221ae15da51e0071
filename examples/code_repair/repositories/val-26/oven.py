def too_hot(now, wanted):
    """
    >>> too_hot(2, 9)
    -7
    """
    return now * wanted
