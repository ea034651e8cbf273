"""What the suites share."""


def too_many(refused: int, of: int) -> bool:
    """Whether so many random programs were refused that the others say little: a generator writes what smalt has."""
    return refused > max(1, of // 50)
