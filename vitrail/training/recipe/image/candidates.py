"""Models for training from nothing, by what they classify: images by their size, sounds, videos."""

from __future__ import annotations

from itertools import islice

from vitrail.data.scan import scan_item
from vitrail.data.table import Source
from vitrail.training.recipe.image.model_choice import Candidate

# Models by the largest median side of images. With time for few epochs only, smaller images are better.
CANDIDATES = {
    10: (Candidate("vit_nano_conv2_8", 0), Candidate("vit_tiny_conv2_8", 20)),
    48: (Candidate("vit_nano_conv4_32", 0), Candidate("vit_tiny_conv4_32", 20), Candidate("vit_small_conv4_32", 20)),
    96: (
        Candidate("vit_nano_conv4_32", 0),
        Candidate("vit_nano_conv8_64", 4),
        Candidate("vit_tiny_conv8_64", 20),
        Candidate("vit_small_conv8_64", 20),
    ),
    10**6: (
        Candidate("vit_nano_conv8_64", 0),
        Candidate("vit_nano_conv16_128", 4),
        Candidate("vit_tiny_conv16_128", 20),
        Candidate("vit_tiny_conv16_224", 20),
        Candidate("vit_small_conv16_224", 20),
    ),
}
CLIP_CANDIDATES = {
    "sound": (
        Candidate("vit_nano_conv8_mel40x96", 0),
        Candidate("vit_nano_conv4_mel40x96", 40),
        Candidate("vit_tiny_conv4_mel40x96", 80),
    ),
    "video": (
        Candidate("vit_nano_patch2x8_gap_video8x64", 0),
        Candidate("vit_tiny_patch2x8_gap_video8x64", 40),
    ),
}
NUM_SCANNED = 16


def list_candidates(source: Source) -> tuple[Candidate, ...]:
    """The models for this data, smallest first; those for clips are adapted to their length."""
    if source.modalities[0] in CLIP_CANDIDATES:
        return CLIP_CANDIDATES[source.modalities[0]]
    sides = sorted(min(scan_item(item).size) for item in islice(iter(source), NUM_SCANNED))
    median = sides[len(sides) // 2]
    return next(candidates for side, candidates in CANDIDATES.items() if median <= side)
