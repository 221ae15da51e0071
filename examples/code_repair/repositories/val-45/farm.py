def animals(cows, sheep):
    """
    >>> animals(5, 6)
    11
    """
    return cows - sheep
