"""Pictures: marks lie on their pixels, whatever the scale and the part that is shown, and names are text."""

import base64
import xml.etree.ElementTree as ET

import cv2
import numpy as np

from jaxpose.report.pictures import cut_around, draw_picture

NAMES = ("nose", "<b>&")


def test_marks_lie_on_their_pixels_in_a_picture_that_is_scaled() -> None:
    image = np.zeros((100, 200, 3), np.uint8)
    image[40:44, 120:124] = (255, 0, 0)
    centre = np.array([[121.5, 41.5], [np.nan, np.nan]])
    text = draw_picture(image, NAMES, (), "a <frame>", 100, predicted_px=centre, labelled_px=centre + (10, 0))
    root = ET.fromstring(text)
    assert root.attrib["aria-label"] == "a <frame>"
    left, top, width, height = (float(part) for part in root.attrib["viewBox"].split())
    (picture,) = root.findall("image")
    content = base64.b64decode(picture.attrib["href"].removeprefix("data:image/jpeg;base64,"))
    shown = cv2.imdecode(np.frombuffer(content, np.uint8), cv2.IMREAD_COLOR)
    assert shown.shape == (50, 100, 3)
    rows, columns = np.nonzero(shown[..., 2] > 128)
    # The picture is stretched over the view box: the centre of its pixel p is at (p + 0.5) width / 100 + left.
    found = (columns.mean() + 0.5) * width / 100 + left, (rows.mean() + 0.5) * height / 50 + top
    np.testing.assert_allclose(found, (121.5, 41.5), atol=0.6)
    label, prediction = root.findall("g/circle")
    assert (prediction.attrib["cx"], prediction.attrib["cy"], label.attrib["cx"]) == ("121.5", "41.5", "131.5")
    assert root.find("g").attrib["class"] == "kp-0" and len(root.findall("g")) == 1  # pyright: ignore
    assert [title.text for title in root.iter("title")] == ["nose, label", "nose, prediction, 10.0 px from its label"]


def test_names_are_text_and_lines_of_the_skeleton_need_both_ends() -> None:
    points = np.array([[5.0, 5.0], [60.0, 5.0]])
    image, marks = np.zeros((64, 64, 3), np.uint8), {"predicted_px": points, "labelled_px": points + (0, 20)}
    text = draw_picture(image, NAMES, ((0, 1),), "x", 300, **marks)
    root = ET.fromstring(text)
    assert [one.text for one in root.iter("text")] == ["nose", "<b>&"] and "<b>" not in text
    assert [line.attrib["class"] for line in root.findall("line")] == ["edge kp-0 kp-1"]
    points[1] = np.nan
    assert not ET.fromstring(draw_picture(image, NAMES, ((0, 1),), "x", 300, **marks)).findall("line")


def test_names_of_labels_stand_inside_of_the_picture() -> None:
    image, labelled_px = np.zeros((100, 100, 3), np.uint8), np.array([[5.0, 50.0], [95.0, 50.0]])
    root = ET.fromstring(draw_picture(image, NAMES, ((0, 1),), "x", 300, labelled_px=labelled_px, named=(0, 1)))
    left, right = root.iter("text")
    assert (left.text, right.text) == NAMES and float(left.attrib["x"]) > 5 and "text-anchor" not in left.attrib
    assert float(right.attrib["x"]) < 95 and right.attrib["text-anchor"] == "end"
    assert [line.attrib["class"] for line in root.findall("line")] == ["edge kp-0 kp-1"]


def test_a_name_at_the_top_edge_stands_below_its_point() -> None:
    image, labelled_px = np.zeros((100, 100, 3), np.uint8), np.array([[5.0, 1.0], [5.0, 50.0]])
    root = ET.fromstring(draw_picture(image, NAMES, (), "x", 300, labelled_px=labelled_px, named=(0, 1)))
    top, other = root.iter("text")
    # The letters stand on the line at y and are lower than the size of the font.
    assert float(top.attrib["y"]) - float(top.attrib["font-size"]) > 1 and float(other.attrib["y"]) < 50


def test_a_cut_has_all_points_and_says_where_it_begins() -> None:
    image = np.random.default_rng(0).integers(0, 255, (400, 600, 3), np.uint8)
    points = np.array([[590.0, 10.0], [500.0, 30.0], [np.nan, np.nan]])
    part, corner = cut_around(image, points)
    x, y = corner.astype(int).tolist()
    np.testing.assert_array_equal(part, image[y : y + part.shape[0], x : x + part.shape[1]])
    inside = points[:2] - corner
    assert (inside >= 0).all() and (inside < part.shape[1::-1]).all() and part.shape[0] < 200
    whole, corner = cut_around(image, np.full((2, 2), np.nan))
    assert whole is image and corner.tolist() == [0, 0]
    assert cut_around(image[:50, :60], points)[0].shape == (50, 60, 3)
