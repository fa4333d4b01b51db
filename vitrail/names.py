"""Model names: those of the papers, Google, torchvision and the hub, translated to timm's."""

from __future__ import annotations

import re

SIZES = {
    "mu": "mu",
    "ti": "tiny",
    "s": "small",
    "b": "base",
    "l": "large",
    "h": "huge",
    "g": "giant",
    "gg": "gigantic",
}
SHORT = re.compile(  # ViT-B/16, B_16, vit_b_16, R50+ViT-B/16, ViT-L/16@384
    rf"(?:r(?P<resnet>\d*)\+)?(?:(?P<family>vit|deit)_)?(?P<size>{'|'.join(SIZES)})[_/](?P<patch>\d+)"
    r"(?:[_@](?P<image>\d+))?"
)
DINOV3 = {  # on the hub: timm's; only the largest model has no biases of queries and values
    "s16": "small_patch16_dinov3_qkvb",
    "s16plus": "small_plus_patch16_dinov3_qkvb",
    "b16": "base_patch16_dinov3_qkvb",
    "l16": "large_patch16_dinov3_qkvb",
    "h16plus": "huge_plus_patch16_dinov3_qkvb",
    "7b16": "7b_patch16_dinov3",
}
PATTERNS = (  # for whole names, in lower case, with underscores
    (r"resnetv2_(\d+x\d)(?:_bitm?)?", r"resnetv2_\1_bit"),
    (r"(?:bit_)?(?:[sml]_)?r(\d+x\d)", r"resnetv2_\1_bit"),
    (r"bit_(50|101)", r"resnetv2_\1x1_bit"),
    (r"dinov2_(small|base|large)", r"vit_\1_patch14_dinov2"),
    (r"dinov2_with_registers_(small|base|large)", r"vit_\1_patch14_reg4_dinov2"),
    *((rf"dinov3_vit{theirs}_pretrain_\w+", f"vit_{timm}") for theirs, timm in DINOV3.items()),
    (r"siglip_(\w+_patch\d+)_(\d+)", r"vit_\1_siglip_\2"),
    (r"(vit_\w+_patch\d+_\d+)_in2?1k", r"\1"),
)


def canonical(name: str) -> str:
    """Return timm's name for `ViT-B/16`, `B_16`, `vit_b_16`, `google/vit-base-patch16-224` and the like."""
    plain = name.strip()
    if re.match(r"[\w.-]+/[a-zA-Z]", plain):  # an organisation on the hub
        plain = plain.rpartition("/")[2]
    # ViT-g (giant) and ViT-G (gigantic, twice as large) differ in case only.
    plain = re.sub(r"(?<![A-Za-z])G(?=[-_/]\d)", "gg", plain)
    plain = plain.lower().replace("-", "_").partition(".")[0]
    if short := SHORT.fullmatch(plain):
        size, image = SIZES[short["size"]], short["image"] or "224"
        if short["resnet"] is None:
            return f"{short['family'] or 'vit'}_{size}_patch{short['patch']}_{image}"
        # The paper's R+Ti/16 is timm's r_s16_p8, named after the patch size on its feature map.
        stem = f"r{short['resnet']}_s{short['patch']}" + ("" if short["resnet"] else "_p8")
        return f"vit_{size}_{stem}_{image}"
    for pattern, timm in PATTERNS:
        if match := re.fullmatch(pattern, plain):
            return match.expand(timm)
    return plain
