def unsold(eggs, sold):
    """
    >>> unsold(6, 5)
    1
    """
    return eggs * sold
