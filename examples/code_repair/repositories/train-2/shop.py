def multiply_count(price, count):
    """
    >>> multiply_count(9, 5)
    45
    """
    return max(price, count)
