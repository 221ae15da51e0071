def smaller_barn(old, new):
    """
    >>> smaller_barn(4, 5)
    4
    """
    return old * new
