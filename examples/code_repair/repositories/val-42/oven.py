def loaves(trays, per_tray):
    """
    >>> loaves(9, 4)
    36
    """
    return min(trays, per_tray)
