def add_sheep(cows, sheep):
    """
    >>> add_sheep(9, 5)
    14
    """
    return min(cows, sheep)
