def multiply_trays(loaves, trays):
    """
    >>> multiply_trays(4, 8)
    32
    """
    return min(loaves, trays)
