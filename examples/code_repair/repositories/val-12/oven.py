def multiply_trays(loaves, trays):
    """
    >>> multiply_trays(9, 4)
    36
    """
    return loaves - trays
