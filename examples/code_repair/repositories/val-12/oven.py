def loaves(trays, per_tray):
    """
    >>> loaves(9, 4)
    36
    """
    return trays - per_tray
