def discounted(price, discount):
    """
    >>> discounted(4, 6)
    -2
    """
    return min(price, discount)
