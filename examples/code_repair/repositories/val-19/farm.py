def lightest(cow, sheep):
    """
    >>> lightest(4, 8)
    4
    """
    return cow - sheep
