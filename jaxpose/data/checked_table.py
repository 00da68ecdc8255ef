"""A table whose images were opened: the size and checksum of each, and a reason for each one that cannot be used."""

import dataclasses
import re

from jaxpose.config import DataConfig
from jaxpose.data.boxes import BoxTable, box_file_of_labels, read_image_boxes
from jaxpose.data.image_file import UPRIGHT, ImageFacts
from jaxpose.data.label_orientation import decide_orientation, describe_orientation, refuse_undecided
from jaxpose.data.label_table import LabelTable
from jaxpose.data.labelled_image import LabelledImage, check_image, check_places, known_images, note_images
from jaxpose.data.views import moment_of_image
from jaxpose.data.white import ValueRange
from jaxpose.errors import UserError
from jaxpose.quantities import count
from jaxpose.threads import map_in_threads
from jaxpose.video.recording import has_proportions


@dataclasses.dataclass(frozen=True)
class CheckedTable:
    """The rows of a view.

    Attributes:
      view: its name, "" with only one camera.
      table: the rows.
      images: {moment: (row, image)} of the usable rows.
      problems: of the other rows.
      orientation: how the labels count pixels, as in `PixelRule`.
      notes: sentences for the user about the images.
    """

    view: str
    table: LabelTable
    images: dict[str, tuple[int, LabelledImage]]
    problems: list[str]
    orientation: str
    notes: tuple[str, ...]

    def ranges(self) -> list[ValueRange]:
        """Returns the values of the usable images of more than 8 bits."""
        return [image.facts.values for _, image in self.images.values() if image.facts.values]

    def crop_px(self, row: int, image: LabelledImage) -> tuple[int, ...]:
        """Returns the crop (x, y, width, height) of its frame that an image shows, () for a whole frame."""
        crop_px = tuple(self.table.crops_px.get(self.table.videos[row], ()))
        return crop_px if crop_px[2:] == image.size_px else ()

    def size_notes(self, has_crops: bool) -> list[str]:
        """Returns a sentence for each video whose images do not have the size of its frames.

        Args:
          has_crops: whether any image of the project is a crop; if not, no video is cropped.
        """
        notes = []
        if has_crops and "*" in self.table.crops_px:
            x, y, width, height = self.table.crops_px["*"]
            notes.append(f"videos without labels are predicted in the crop of {width} x {height} px at ({x}, {y})")
        by_video: dict[str, list[tuple[int, LabelledImage]]] = {}
        for row, image in self.images.values():
            by_video.setdefault(self.table.videos[row], []).append((row, image))
        for video, of_video in by_video.items():
            crops = [crop for row, image in of_video if (crop := self.crop_px(row, image))]
            frame_px = self.table.frame_sizes_px.get(video)
            resized = [image for row, image in of_video if not self.crop_px(row, image) and image.size_px != frame_px]
            if crops:
                x, y, width, height = crops[0]
                notes.append(
                    f"{video}: {count(len(crops), 'image')} show the crop of {width} x {height} px at ({x}, {y}) of "
                    "their frames; results are in pixels of whole frames"
                    + "; the others are whole, and the video is predicted in the crop"
                    * (len(crops) < len(of_video))
                )
            if frame_px and resized:
                notes.append(describe_resized(video, len(resized), frame_px))
        return notes


def describe_resized(video: str, images: int, frame_px: tuple[int, int]) -> str:
    """Returns a sentence about images of a video that do not have the size (width, height) of its frames."""
    return (
        f"{video}: {count(images, 'image')} have another size than the frames of the video "
        f"({frame_px[0]} x {frame_px[1]} px), in the same proportions; they count as whole frames"
    )


def check_table(table: LabelTable, view: str, data: DataConfig) -> CheckedTable:
    """Opens every image of a table; those that were intact before are not decoded again.

    Args:
      table: the rows of a view.
      view: its name, "" with only one camera.
      data: the crop or the boxes, and the number of threads.

    Raises:
      UserError: the file of boxes cannot be read.
    """
    boxes = read_image_boxes(box_file_of_labels(data, table.file.name, view)) if data.boxes else None
    noted = known_images(table.file)
    known = dict(noted)

    def open_image(row: int) -> LabelledImage | str:
        try:
            return check_image(table.paths[row], table.poses.frames[row], known)
        except UserError as error:
            return f"{table.sources[row]}: {error}"

    rows = range(len(table.poses.frames))
    opened = list(map_in_threads(open_image, rows, data.threads, "checking images"))
    facts = [None if isinstance(image, str) else image.facts for image in opened]
    orientation = decide_orientation(data.orientation, table, facts)

    def check(row: int, image: LabelledImage) -> tuple[str, LabelledImage] | str:
        try:
            moment = moment_of_image(table.poses.frames[row], view)
            refuse_undecided(table, row, image.facts, orientation)
            image = dataclasses.replace(
                image,
                size_px=image.facts.size_px(orientation),
                pixel_checksum=image.facts.pixel_checksum(orientation),
            )
            refuse_resized(table, row, image.facts, orientation)
            _refuse_unknown_part(table, row, image.size_px)
            check_places(table, row, image.size_px, data.crop_px)
            if boxes:
                image = dataclasses.replace(image, box_px=_box(*boxes, table.poses.frames[row], image.size_px))
        except UserError as error:
            return f"{table.sources[row]}: {error}"
        return moment, image

    images, problems = {}, list(table.problems)
    for row, image in enumerate(opened):
        checked = image if isinstance(image, str) else check(row, image)
        if isinstance(checked, str):
            problems.append(checked)
        else:
            moment, image = checked
            if moment in images:
                first, name = table.sources[images[moment][0]], table.poses.frames[row]
                problems.append(f"{table.sources[row]}: {name} is labelled in {first} already")
            else:
                images[moment] = row, image
    note_images(table.file, noted, (image for _, image in images.values()))
    used = [image.facts for _, image in images.values()]
    notes = tuple(filter(None, [describe_orientation(data.orientation, orientation, used)]))
    return CheckedTable(view, table, images, problems, orientation, notes)


def _box(boxes: BoxTable, rows: dict[str, int], image: str, size_px: tuple[int, int]) -> tuple[int, ...]:
    """Returns the box of an image of (width, height) px; raises UserError where it has none."""
    if image not in rows:
        raise UserError(f"{image} has no row in {boxes.file}")
    return boxes.inside(rows[image], size_px)


def refuse_resized(table: LabelTable, row: int, facts: ImageFacts, orientation: str) -> None:
    """Raises UserError if an image is not as large as the label tool saw it.

    Args:
      table, row: the image.
      facts: of the image; label files may give its upright or its stored size.
      orientation: that the error shows.
    """
    name, size_px = table.poses.frames[row], facts.size_px(orientation)
    labelled_px = table.sizes_px.get(name, size_px)
    if labelled_px not in (facts.size_px(UPRIGHT), facts.stored_px):
        raise UserError(
            f"{name} has {size_px[0]} x {size_px[1]} pixels, but it was labelled with {labelled_px[0]} x "
            f"{labelled_px[1]}; put the original back, or scale the labels with it"
        )


def _refuse_unknown_part(table: LabelTable, row: int, size_px: tuple[int, int]) -> None:
    """Refuses an image that is neither a frame of its video, also resized, nor the crop of it: what does it show?"""
    image, video = table.poses.frames[row], table.videos[row]
    crop_px, frame_px = table.crops_px.get(video), table.frame_sizes_px.get(video)
    (width, height), (frame_width, frame_height) = size_px, frame_px or size_px
    if has_proportions(size_px, (frame_width, frame_height)) or (crop_px and tuple(crop_px[2:]) == size_px):
        return
    crop = f", and their crop {crop_px[2]} x {crop_px[3]}" if crop_px else ""
    raise UserError(
        f"{image} has {width} x {height} pixels, but the frames of its video {video} have "
        f"{frame_width} x {frame_height}{crop}; correct the crop of the video (in DeepLabCut: config.yaml), or put the "
        "original image back"
    )


def all_problems(checked: CheckedTable, views: list[CheckedTable]) -> list[str]:
    """Returns the problems of the rows of a view, in their order, including moments that another view lacks."""
    problems = list(checked.problems)
    for moment, (row, _) in checked.images.items():
        lacking = [other for other in views if moment not in other.images]
        if lacking:
            source, name = checked.table.sources[row], checked.table.poses.frames[row]
            problems.append(
                f"{source}: {name} has no usable row for the view {lacking[0].view} in {lacking[0].table.file}"
            )
    return sorted(problems, key=_place)


def _place(problem: str) -> tuple[str, int]:
    """Returns the file and the line of a problem, "FILE:LINE: reason"."""
    match = re.match(r"(.*?)(\d{1,9}): ", problem)
    return (match[1], int(match[2])) if match else (problem, 0)
