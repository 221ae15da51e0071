def animals(cows, sheep):
    """
    >>> animals(6, 2)
    8
    """
    return cows - sheep
