"""The sets that an earlier run, or a file of the user, gave to frames."""

import dataclasses
import functools


@dataclasses.dataclass(frozen=True)
class KnownSplit:
    """What a file says about sets.

    Attributes:
      sets: {path: set}.
      checksums: {path: SHA-256} of the images, "" where the file does not say it.
      labels_checksums: {path: SHA-256} of the labels, likewise.
      trained_before: {SHA-256: path} of images that trained the weights which a run started from, and not the run.
      is_predictions: the file is a predictions.csv.
    """

    sets: dict[str, str]
    checksums: dict[str, str]
    labels_checksums: dict[str, str]
    trained_before: dict[str, str]
    is_predictions: bool

    @functools.cached_property
    def _sets_by_checksum(self) -> dict[str, str]:
        found: dict[str, str] = {}
        for image, name in self.sets.items():
            checksum = self.checksums[image]
            # Of equal images one that trains decides.
            if checksum and (name == "train" or checksum not in found):
                found[checksum] = name
        return found

    def set_of(self, image: str, checksum: str) -> str:
        """Returns the set of an image, found by its path or, where it was renamed, by its bytes; "" of a new one."""
        by_bytes = self._sets_by_checksum.get(checksum, "train" if checksum in self.trained_before else "")
        return self.sets.get(image, by_bytes)

    def set_of_same(self, image: str, checksum: str) -> str:
        """Returns the set of an image as `set_of`, but "" where other bytes lie at its path."""
        is_same = self.checksums.get(image) == checksum
        return self.sets[image] if is_same else self._sets_by_checksum.get(checksum, "")

    def trained(self) -> dict[str, str]:
        """Returns {SHA-256: path} of all images that trained the weights of a run, those of earlier runs too."""
        own = {self.checksums[image]: image for image, name in self.sets.items() if name == "train"}
        return self.trained_before | own
