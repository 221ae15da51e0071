def multiply_count(price, count):
    """
    >>> multiply_count(5, 9)
    45
    """
    return min(price, count)
