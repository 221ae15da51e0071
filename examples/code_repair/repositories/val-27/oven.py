def loaves(trays, per_tray):
    """
    >>> loaves(4, 8)
    32
    """
    return min(trays, per_tray)
