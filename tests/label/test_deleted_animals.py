"""Animals and images that are gone while `jaxpose label` is open: no other one takes their labels."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from jaxpose.errors import UserError
from jaxpose.label.predictions import Predictions
from jaxpose.label.store import Stale
from tests.formats.test_coco import change
from tests.label.test_several_animals import NEW, K, edit, poses_of, remove, several_coco, several_sleap
from tests.label.test_whole_files import opened


@pytest.mark.parametrize("make", [several_coco, several_sleap])
def test_no_animal_takes_the_place_of_a_deleted_one_and_an_edit_of_an_earlier_session_is_refused(
    make: Callable[[Path], Path], tmp_path: Path
) -> None:
    file = make(tmp_path)
    with opened(file) as store:
        assert store.frame(0)["removed"] == []
        remove(store, 0, 0)
        store.flush()
        old = store.frame(0)
        # A prediction of another animal is not one of the deleted animal, whose track or box it would get.
        there = np.full((1, K, 3), 0.9) + [5000, 5000, 0]
        store.take(Predictions(file, {store.images[0]: there}, store.project))
        predicted = store.frame(0)["predicted"]
        assert old["removed"] == [0] and [bool(point) for point in predicted] == [False] * 2 * K + [True] * K
        store.close()
    with opened(file) as store:
        # There, the first place is of the animal that the page has in its second one.
        assert len(poses_of(store, 0)) == 1
        with pytest.raises(Stale):
            store.edit(0, old["revision"], {K: NEW})


def test_an_image_that_another_program_removed_takes_no_label(tmp_path: Path) -> None:
    file = several_coco(tmp_path)
    with opened(file) as store:
        edit(store, 0, 0, nose=NEW)
        left = {"images": json.loads(file.read_text())["images"][1:]}
        change(file, lambda tree: tree | left)
        without = file.read_bytes()
        store.flush()
        assert store.frame(0)["conflicts"] == [[0, NEW]]
        for refused in (lambda: edit(store, 0, 0, nose=NEW), lambda: store.path_of(0)):
            with pytest.raises(UserError, match="has no image images/day1/img03.png"):
                refused()
        # Other labels are written as before.
        edit(store, 1, 0, nose=NEW)
        store.flush()
        assert file.read_bytes() != without
