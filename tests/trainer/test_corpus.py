"""The data order is a function of seed and sample number, whoever asks."""

from __future__ import annotations

import hashlib

import pytest
import torch

from ranksight.trainer.corpus import Corpus, python_help

TEXT = bytes(range(256)) * 8


def test_targets_are_the_inputs_one_byte_later() -> None:
    batch = Corpus(TEXT, seq=16, seed=0).batch(0, 4)
    assert batch.inputs_BS.shape == batch.targets_BS.shape == (4, 16)
    assert batch.inputs_BS.dtype == torch.int64
    assert torch.equal(batch.targets_BS, (batch.inputs_BS + 1) % 256)


def test_ranks_draw_their_parts_of_the_same_step() -> None:
    corpus = Corpus(TEXT, seq=16, seed=0)
    whole = corpus.batch(32, 8).inputs_BS
    halves = [corpus.batch(32, 4).inputs_BS, corpus.batch(36, 4).inputs_BS]
    assert torch.equal(whole, torch.cat(halves))


def test_order_depends_on_the_seed_and_the_cursor_alone() -> None:
    first, again, other = (Corpus(TEXT, seq=16, seed=seed).batch(40, 8) for seed in (1, 1, 2))
    assert first.fingerprint == again.fingerprint
    assert first.fingerprint != other.fingerprint
    assert first.fingerprint != Corpus(TEXT, seq=16, seed=1).batch(48, 8).fingerprint


def test_offsets_reach_both_ends_of_the_text_and_no_further() -> None:
    corpus = Corpus(bytes(20), seq=16, seed=0)
    assert {corpus.offset(sample) for sample in range(200)} == {0, 1, 2, 3}


def test_a_text_without_one_sample_is_refused() -> None:
    with pytest.raises(ValueError, match="16 bytes has no window of 17 bytes"):
        Corpus(bytes(16), seq=16, seed=0)


def test_the_text_is_there_and_its_digest_is_of_the_text() -> None:
    text = python_help()
    assert len(text) > 100_000
    assert Corpus(text, seq=64, seed=0).digest == hashlib.sha256(text).hexdigest()
