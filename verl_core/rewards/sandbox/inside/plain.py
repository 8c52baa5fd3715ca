"""Values that cross the border of a sandbox, as JSON: plain data, and nothing that could act on the other side.

None, booleans, numbers, text, bytes, lists, tuples, sets, frozen sets, dicts, ranges and these types themselves arrive
as exactly that, a subclass's value as the type it extends: whatever methods it brings stay where they are. Anything
else stays where it is too, and a number stands for it.
"""

_SMALL = 2**63  # larger integers go as hexadecimal text, whose length Python does not limit


class TooMuch(ValueError):
    """More elements than the reader is ready to take."""


def encode(value, keep):
    """What json.dumps can write for `value`; `keep(object)` gives the number that stands for what is not plain."""
    if value is None or value is True or value is False:
        return value
    if isinstance(value, int):
        value = int.__index__(value)
        return value if -_SMALL < value < _SMALL else ["int", hex(value)]
    if isinstance(value, float):
        return float.__pos__(value)
    if isinstance(value, str):
        return str.__getitem__(value, slice(None))
    if isinstance(value, complex):
        return ["complex", value.real, value.imag]
    if isinstance(value, bytes):
        return ["bytes", bytes.hex(value)]
    if isinstance(value, dict):
        return ["dict", *([encode(k, keep), encode(v, keep)] for k, v in dict.items(value))]
    for name, kind in _COLLECTIONS.items():
        if isinstance(value, kind):
            return [name, *(encode(item, keep) for item in kind.__iter__(value))]
    if isinstance(value, range):
        return ["range", value.start, value.stop, value.step]
    for name, kind in _TYPES.items():
        if value is kind:
            return ["type", name]
    return ["object", keep(value)]


def decode(data, kept, most=float("inf")):
    """The value that `encode` wrote; `kept(number)` gives what stands for an object of the other side.

    Raises TooMuch for more than `most` elements in all, and ValueError, TypeError or IndexError for what `encode` does
    not write.
    """
    left = [most]

    def build(data):
        left[0] -= 1
        if left[0] < 0:
            raise TooMuch
        if data is None or isinstance(data, bool | int | float | str):
            return data
        kind, *parts = data
        if kind in _COLLECTIONS:
            return _COLLECTIONS[kind]([build(part) for part in parts])
        if kind == "dict":
            return {build(key): build(value) for key, value in parts}
        if kind == "object":
            return kept(int(parts[0]))
        return _SCALARS[kind](*parts)

    return build(data)


_COLLECTIONS: dict = {kind.__name__: kind for kind in (list, tuple, set, frozenset)}
_TYPES: dict = {kind.__name__: kind for kind in (bool, int, float, complex, str, bytes, dict, range)} | _COLLECTIONS
_SCALARS: dict = {
    "int": lambda digits: int(digits, 16),
    "bytes": bytes.fromhex,
    "complex": complex,
    "range": range,
    "type": _TYPES.__getitem__,
}
