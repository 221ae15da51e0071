def discounted(price, discount):
    """
    >>> discounted(3, 6)
    -3
    """
    return max(price, discount)
