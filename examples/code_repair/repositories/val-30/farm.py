def animals(cows, sheep):
    """
    >>> animals(6, 8)
    14
    """
    return cows * sheep
