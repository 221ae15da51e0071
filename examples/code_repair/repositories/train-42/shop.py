def multiply_count(price, count):
    """
    >>> multiply_count(3, 2)
    6
    """
    return min(price, count)
