def smaller_barn(old, new):
    """
    >>> smaller_barn(4, 8)
    4
    """
    return old - new
