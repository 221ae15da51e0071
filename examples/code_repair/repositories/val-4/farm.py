def lightest(cow, sheep):
    """
    >>> lightest(4, 5)
    4
    """
    return cow * sheep
