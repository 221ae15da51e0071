def multiply_count(price, count):
    """
    >>> multiply_count(8, 9)
    72
    """
    return price + count
