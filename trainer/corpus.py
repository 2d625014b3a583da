"""Text to train on, and which bytes a step gets.

The text is the help of Python itself (`pydoc_data.topics`): half a megabyte of English, in every CPython, so that a run
needs no download. It differs between Python versions; its digest is printed, kept in checkpoints, and compared at a
resume.

The data order is stateless. Sample k is a window at an offset that depends on (seed, k) alone, and step s of batch size
b trains on samples [s * b, (s + 1) * b), of which every data parallel rank takes its own part. So the whole data state
is one number, the cursor: the next sample. Layout, restarts and machine do not change what is trained on.
"""

from __future__ import annotations

import hashlib
import zlib
from typing import NamedTuple

import torch
from torch import Tensor


class Batch(NamedTuple):
    """Inputs, and the same shifted by one byte; int64, [samples, seq]."""

    inputs_BS: Tensor
    targets_BS: Tensor
    fingerprint: int  # crc32 of the bytes


def python_help() -> bytes:
    """The text, topics in alphabetical order."""
    from pydoc_data import topics

    return "\n\n".join(topics.topics[name] for name in sorted(topics.topics)).encode()


class Corpus:
    """A text as a stream of samples. ValueError when it is shorter than one sample."""

    def __init__(self, text: bytes, seq: int, seed: int) -> None:
        if len(text) <= seq:
            raise ValueError(f"a text of {len(text)} bytes has no window of {seq + 1} bytes")
        self.digest = hashlib.sha256(text).hexdigest()
        self.num_bytes = len(text)
        self._text, self._seq, self._seed = text, seq, seed

    def offset(self, sample: int) -> int:
        """Where in the text a sample begins."""
        draw = hashlib.blake2b(f"{self._seed}:{sample}".encode(), digest_size=8).digest()
        return int.from_bytes(draw, "little") % (len(self._text) - self._seq)

    def batch(self, first: int, count: int) -> Batch:
        """Samples [first, first + count)."""
        offsets = [self.offset(sample) for sample in range(first, first + count)]
        drawn = b"".join(self._text[at : at + self._seq + 1] for at in offsets)
        bytes_BS = torch.frombuffer(bytearray(drawn), dtype=torch.uint8).view(count, self._seq + 1).long()
        return Batch(bytes_BS[:, :-1].contiguous(), bytes_BS[:, 1:].contiguous(), zlib.crc32(drawn))
