def lightest(cow, sheep):
    """
    >>> lightest(4, 9)
    4
    """
    return cow * sheep
