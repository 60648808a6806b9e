# SPDX-License-Identifier: GPL-2.0
"""Random numbers that can be given again, or nearly: whoever makes a thing of them makes the same, or one like it."""

import random


class Choices(random.Random):
    """Random numbers out of given bytes as long as these last, then out of another generator."""

    def __new__(cls, *_):
        return super().__new__(cls)

    def __init__(self, given, further):
        super().__init__(0)
        self.given, self.further = given, further
        # What has been taken: given again, it has the same come of it.
        self.taken = bytearray()

    def getrandbits(self, bits):
        size, place = (bits + 7) // 8, len(self.taken)
        data = self.given[place:place + size]
        data += self.further.randbytes(size - len(data))
        self.taken += data
        return int.from_bytes(data, "little") >> (size * 8 - bits)

    def random(self):
        return self.getrandbits(16) / 65536

    def randbytes(self, n):
        """Bytes that nobody chooses by: which ones they are matters little, so a single one stands for them."""
        return random.Random(self.getrandbits(8)).randbytes(n)


def changed(data, rng, others):
    """Nearly the same bytes, or some of them and some of another."""
    data = bytearray(data)
    for _ in range(rng.choice([1, 1, 1, 2, 3, 6])):
        place, length = rng.randrange(len(data) + 1), rng.choice([1, 1, 2, 4, 16])
        how = rng.randrange(6)
        if how == 0:
            data[place:place + length] = rng.randbytes(length)
        elif how == 1:
            data[place:place] = rng.randbytes(length)
        elif how == 2:
            del data[place:place + length]
        elif how == 3:
            other = rng.choice(others)
            cut = rng.randrange(len(other) + 1)
            data[place:] = other[cut:]
        elif how == 4 and place < len(data):
            data[place] ^= 1 << rng.randrange(8)
        else:
            # What comes behind is new.
            del data[place:]
    return bytes(data)
