def animals(cows, sheep):
    """
    >>> animals(9, 5)
    14
    """
    return min(cows, sheep)
