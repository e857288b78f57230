"""What the official datasets are: the checksums that their publishers state.

ImageNet's publisher states the MD5 of each archive (image-net.org, ILSVRC 2012), not what a
dataset's SHA-256 is here. A folder that was prepared from these archives has their MD5 on record
and a SHA-256 that any other layout of the same images gives too.
"""

from __future__ import annotations

from collections.abc import Mapping

from aiperf_hpc.trial import DatasetInfo

TRAINING, VALIDATION = "ILSVRC2012_img_train.tar", "ILSVRC2012_img_val.tar"
DEVKIT = "ILSVRC2012_devkit_t12.tar.gz"

ARCHIVES: Mapping[str, Mapping[str, str]] = {
    "imagenet": {
        TRAINING: "1d675b47d978889d74fa0da5fadfb00e",
        VALIDATION: "29b22e2961454d5413ddabcf34fc5622",
        DEVKIT: "fa75699e90414af021442c21a62c3abf",
    }
}
"""The published MD5 of each archive of a dataset, by its file."""
DIGESTS: Mapping[str, frozenset[str]] = {"imagenet": frozenset()}
"""The SHA-256 of the datasets that these archives gave; none is known to this version."""


def why_unofficial(info: DatasetInfo) -> str | None:
    """Return why a dataset is not known to be the official one, or None where it is."""
    if info.name not in ARCHIVES:
        return f"{info.name} has no official content"
    if info.sha256 in DIGESTS[info.name] or info.archives == ARCHIVES[info.name]:
        return None
    if info.archives:
        return "it was prepared from archives of another MD5 than the published ones"
    return (
        f"it was not prepared from the official archives, nor is SHA-256 {info.sha256[:12]} known "
        "as theirs; prepare it from the folder that has them"
    )
