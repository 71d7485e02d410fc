"""How far two texts are equal."""


def common_characters(one: str, other: str) -> int:
    """How many characters two texts share from the start. Bisects, since to compare slices is much faster than to
    look at each character.
    """
    one, other = str.__str__(one), str.__str__(other)  # without provenance
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low
