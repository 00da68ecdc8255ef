"""Which keypoints a flip swaps, and what is refused."""

import pytest

from jaxpose.data.skeleton import flip_permutation


@pytest.mark.parametrize(
    "left, right",
    [
        ("left_ear", "right_ear"), ("ear-left", "ear-right"), ("ear.L", "ear.R"), ("leftPaw", "rightPaw"),
        ("PawL", "PawR"), ("paw1LH", "paw1RH"), ("lf_paw", "rf_paw"), ("LEFT_Eye", "Right_eye"), ("l1", "r1"),
        ("LHpaw", "RHpaw"), ("LHPaw", "RHPaw"), ("hind_left_paw2", "hind_right_paw2"), ("lEar", "rEar"),
        ("knee left", "knee right"), ("leftear", "rightear"), ("earleft", "EarRight"),
    ],
)  # fmt: skip
def test_pairs_by_name(left: str, right: str) -> None:
    assert flip_permutation(["nose", right, left, "tailBase"], ()) == (0, 2, 1, 3)


def test_names_that_only_look_like_a_side_stay() -> None:
    names = ["ball", "lear", "rear", "L", "R", "curl_l", "curl_r"]
    assert flip_permutation(names, ()) == (0, 1, 2, 4, 3, 6, 5)


def test_it_is_its_own_inverse() -> None:
    order = flip_permutation(["a_l_top", "a_l_bot", "a_r_bot", "nose", "a_r_top"], ())
    assert [order[entry] for entry in order] == list(range(5))
    assert order == (4, 2, 1, 3, 0)


@pytest.mark.parametrize(
    "names, message",
    [
        (["nose", "tail"], "no name of nose, tail contains a side"),
        (["nose", "paw_l"], "paw_l have no partner"),
        (["paw_l", "paw_r", "knee_left"], "knee_left have no partner"),
        (["paw1LH_top", "paw4RH_top"], "paw1LH_top, paw4RH_top have no partner"),
        (["l_left", "r_left", "l_right"], r"l_left \(r_left or l_right\)"),
        (["Paw_L", "paw_l", "paw_r"], r"paw_r \(Paw_L or paw_l\)"),
        (["leftear", "paw_l", "paw_r"], "leftear contain a side that is not a separate word"),
        (["leftear", "rightear", "bright", "cleft"], "bright, cleft contain a side that is not a separate word"),
        (["leftear", "rightear", "RightEar"], "leftear contain a side that is not a separate word"),
    ],
)
def test_incomplete_pairing_is_refused(names: list[str], message: str) -> None:
    with pytest.raises(ValueError, match=message) as error:
        flip_permutation(names, ())
    assert "data.flip_pairs" in str(error.value)


def test_names_of_two_views_in_one_frame_are_refused() -> None:
    """Those of mirror-mouse-example."""
    body = ("paw1LH", "paw2LF", "paw3RF", "paw4RH", "tailBase", "tailMid", "nose")
    names = [*(f"{part}_top" for part in (*body, "obs")), *(f"{part}_bot" for part in (*body, "obsHigh", "obsLow"))]
    with pytest.raises(ValueError, match="paw1LH_top, paw2LF_top, paw3RF_top, paw4RH_top"):
        flip_permutation(names, ())


def test_given_pairs_decide_alone() -> None:
    names = ["paw1LH", "paw2LF", "paw3RF", "paw4RH", "nose", "mark_l"]
    given = ("paw1LH:paw4RH", "paw2LF:paw3RF", "mark_l:mark_l")
    assert flip_permutation(names, given) == (3, 2, 1, 0, 4, 5)


@pytest.mark.parametrize(
    "given, message",
    [
        (("a_l:b",), "'a_l:b'; it must be 'left_name:right_name' with keypoints of a_l, a_r, nose"),
        (("a_l",), "'a_l'; it must be"),
        (("a_l:a_r", "nose:a_r"), "names 'a_r' twice"),
        (("nose:nose",), "leaves out a_l, a_r"),
    ],
)
def test_wrong_given_pairs_are_refused(given: tuple[str, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        flip_permutation(["a_l", "a_r", "nose"], given)


def test_a_side_within_a_word_is_not_forgotten() -> None:
    with pytest.raises(ValueError, match="leaves out leftear, rightear"):
        flip_permutation(["a_l", "a_r", "leftear", "rightear"], ("a_l:a_r",))
