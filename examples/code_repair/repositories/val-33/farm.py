def heaviest(cow, sheep):
    """
    >>> heaviest(4, 8)
    8
    """
    return min(cow, sheep)
