"""The sets that an earlier run, or a file of the user, gave to frames."""

import dataclasses
import functools

from jaxpose.codes import TRAIN


@dataclasses.dataclass(frozen=True)
class KnownSplit:
    """The sets that a file gives to frames.

    Attributes:
      sets: {path: set}.
      checksums: {path: SHA-256} of the images, "" if the file lacks it.
      labels_checksums: {path: SHA-256} of the labels, likewise.
      trained_before: {SHA-256: path} of images that trained the weights from which a run started, but not the run.
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
            # Of identical images, one that trains decides.
            if checksum and (name == TRAIN or checksum not in found):
                found[checksum] = name
        return found

    def set_of(self, image: str, checksum: str) -> str:
        """Returns the set of an image, matched by its path or, if renamed, by its bytes; "" for a new one."""
        by_bytes = self._sets_by_checksum.get(checksum, TRAIN if checksum in self.trained_before else "")
        return self.sets.get(image, by_bytes)

    def set_of_same(self, image: str, checksum: str) -> str:
        """Returns the set of an image as `set_of`, but "" if the image at its path has changed."""
        is_same = self.checksums.get(image) == checksum
        return self.sets[image] if is_same else self._sets_by_checksum.get(checksum, "")

    def trained(self) -> dict[str, str]:
        """Returns {SHA-256: path} of all images that trained the weights of a run, including earlier runs."""
        own = {self.checksums[image]: image for image, name in self.sets.items() if name == TRAIN}
        return self.trained_before | own
