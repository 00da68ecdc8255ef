"""The server of the page. Requests name images by number, never by path."""

import functools
import math
import secrets
import threading
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from jaxpose.data.image_file import (
    AUTO,
    NORMAL,
    STORED,
    PixelRule,
    choose_white,
    decode_image,
    describe,
    plain_jpeg,
    read_orientation,
    refuse_damaged_jpeg,
    values_of,
)
from jaxpose.errors import UserError
from jaxpose.files import NotRegularFile, read_bytes
from jaxpose.label.flags import Flags
from jaxpose.label.geometry import Geometry
from jaxpose.label.guard import Guard, PageFiles, Tokens, number_in, read_json, refuse
from jaxpose.label.reasons import find_suggested, find_wrong, has_suggestions
from jaxpose.label.store import Stale, Store
from jaxpose.label.traces import TRACES
from jaxpose.label.training import Training
from jaxpose.label.videos import Videos
from jaxpose.labelling.label_file import Point
from jaxpose.poses import NOT_VISIBLE, VISIBLE

_PAGE = (
    "page.html",
    "page.css",
    "page.js",
    "choices.js",
    "editor.js",
    "flags.js",
    "frame.js",
    "frames.js",
    "geometry.js",
    "goto.js",
    "onion.js",
    "pictures.js",
    "pointer.js",
    "side.js",
    "stage.js",
    "keys.js",
    "queue.js",
    "requests.js",
    "timeline.js",
    "training.js",
    "view.js",
    "icon.svg",
)
# A page sends the run of the server that gave it its numbers of images and animals.
_RUN_HEADER = "Jaxpose-Run"
_PICTURE_HEADER = "Jaxpose-Picture"
# In an address, asks for a picture with fewer bytes.
_PREVIEW = "preview"
_MOST_PX = 1e6
_MOST_FRAMES = 100
# Of an image; more are a mistake of the page.
_MOST_ANIMALS = 200
_MOST_NAME = 100
_JPEG_QUALITY, _PREVIEW_QUALITY = 95, 60
_MOST_PICTURE_BYTES = 128 * 2**20


class Pictures:
    """The images as JPEG files with the pixels that training reads; keeps the latest ones."""

    def __init__(self, store: Store, orientation: str):
        self._store, self._orientation = store, orientation
        # The file of an image may be that of a frame in a cache, which takes a while to find.
        self._files: dict[int, Path] = {}
        # By the number of the image, the state of its file, and whether it is a preview.
        self._kept: OrderedDict[tuple[int, tuple[int, ...], bool], bytes] = OrderedDict()
        self._sizes_px: dict[tuple[int, tuple[int, ...]], tuple[int, int]] = {}
        self._lock = threading.Lock()

    def size_px(self, number: int) -> tuple[int, int]:
        """Returns (width, height) of an image; raises as `get`."""
        if (key := self._key(number)) not in self._sizes_px:
            height, width = decode_image(self.get(number)).shape[:2]
            self._sizes_px[key] = width, height
        return self._sizes_px[key]

    def tag(self, number: int) -> str:
        """Returns a text that changes when the file of an image is replaced; "" without a usable file."""
        try:
            return "-".join(map(str, self._key(number)[1]))
        except UserError:
            return ""

    def get(self, number: int, is_preview: bool = False) -> bytes:
        """Returns the JPEG file of an image; a preview has the same pixels in fewer bytes.

        Raises:
          UserError: it does not exist, lies outside of the project, does not decode, or its orientation is unknown.
        """
        key = *self._key(number), is_preview
        with self._lock:
            if key in self._kept:
                self._kept.move_to_end(key)
                return self._kept[key]
        if is_preview:
            content = jpeg_of(decode_image(self.get(number)), is_preview)
        else:
            content = self._make(self._store.images[number], self._store.path_of(number))
        with self._lock:
            self._kept[key] = content
            while sum(map(len, self._kept.values())) > _MOST_PICTURE_BYTES:
                self._kept.popitem(last=False)
        return content

    def _key(self, number: int) -> tuple[int, tuple[int, ...]]:
        """Returns a key that differs between two files of an image that replaced each other."""
        if number not in self._files:
            self._files[number] = self._store.path_of(number)
        return number, _state(self._files[number])

    def _make(self, name: str, file: Path) -> bytes:
        try:
            content = read_bytes(file, most_bytes=None)
        except (OSError, NotRegularFile) as error:
            raise UserError(f"{name} cannot be read: {error.strerror}") from None
        orientation = read_orientation(content)
        if orientation != NORMAL and self._orientation == AUTO:
            raise UserError(
                f"{name} has {describe(orientation)}: are its labels in pixels of the upright image, or of the stored "
                "one? Start again with --orientation upright or --orientation stored"
            )
        if (orientation == NORMAL or self._orientation == STORED) and (plain := plain_jpeg(content)):
            refuse_damaged_jpeg(content)
            return plain
        values = values_of(content)
        white = choose_white([values]) if values else 0.0
        pixels = decode_image(content, PixelRule(self._orientation, white))
        return jpeg_of(pixels)


def _state(file: Path) -> tuple[int, ...]:
    """Returns what changes when a file is replaced; () without the file."""
    try:
        status = file.stat()
    except OSError:
        return ()
    return status.st_size, status.st_mtime_ns, status.st_ino


def jpeg_of(pixels: np.ndarray, is_preview: bool = False) -> bytes:
    """Returns a JPEG file of RGB pixels (h, w, 3); a preview has fewer bytes."""
    options = [cv2.IMWRITE_JPEG_QUALITY, _PREVIEW_QUALITY if is_preview else _JPEG_QUALITY]
    if not is_preview:
        options += [cv2.IMWRITE_JPEG_SAMPLING_FACTOR, cv2.IMWRITE_JPEG_SAMPLING_FACTOR_444]
    return cv2.imencode(".jpg", cv2.cvtColor(pixels, cv2.COLOR_RGB2BGR), options)[1].tobytes()


def make_app(
    store: Store, videos: Videos, training: Training, tokens: Tokens, orientation: str, geometry: Geometry | None = None
) -> "Guard":
    """Returns the application of a store.

    Args:
      store: the labels.
      videos: of the project.
      training: of the project.
      tokens: the secrets that open the page.
      orientation: of the labels' pixels, as in `image_file.PixelRule`.
      geometry: the calibrated cameras, None without a calibration.

    Raises:
      DamagedFile: as `Flags`.
    """
    answers = _Answers(store, videos, training, Pictures(store, orientation), geometry)
    routes = [
        Route("/", answers.page),
        Route("/{name:str}", answers.file),
        Route("/api/project", answers.project),
        Route("/api/changes", answers.changes),
        Route("/api/train", answers.train, methods=["POST"]),
        Route("/api/stop", answers.stop, methods=["POST"]),
        Route("/api/reasons/{kind:str}", answers.reasons),
        Route("/api/frames", answers.frames),
        Route("/api/frame/{number:str}", answers.frame),
        Route("/api/frame/{number:str}", answers.edit, methods=["POST"]),
        Route("/api/frame/{number:str}/flag", answers.flag, methods=["POST"]),
        Route("/api/frame/{number:str}/keep/{place:str}", answers.keep, methods=["POST"]),
        Route("/api/frame/{number:str}/geometry/{place:str}", answers.geometry),
        Route("/image/{number:str}", answers.image),
        Route("/api/video/{video:str}", answers.video),
        Route("/api/video/{video:str}/trace/{kind:str}", answers.trace),
        Route("/api/video/{video:str}/{frame:str}", answers.extract, methods=["POST"]),
        Route("/video/{video:str}/{frame:str}", answers.video_frame),
    ]
    return Guard(Starlette(routes=routes, exception_handlers={HTTPException: refuse}), tokens)


def _answering(answer: Callable[..., Any]) -> Callable[..., Awaitable[Response]]:
    """Makes an answer of a method of `_Answers` that returns JSON, and of its errors."""

    @functools.wraps(answer)
    async def checked(self: "_Answers", request: Request) -> Response:
        number = 0
        if request.headers.get(_RUN_HEADER, self.run) != self.run:
            raise HTTPException(410, "jaxpose label was started again, perhaps with another project: reload this page")
        if "number" in request.path_params:
            request.path_params["number"] = number = number_in(request.path_params["number"])
            if not 0 <= number < len(self.store.images):
                raise HTTPException(404, "there is no such image")
        try:
            found = await answer(self, request)
        except Stale:
            return JSONResponse(self.store.frame(number), 409)
        except UserError as error:
            raise HTTPException(422, str(error)) from None
        except OSError as error:
            raise HTTPException(507, f"{error.filename}: {error.strerror}") from None
        return found if isinstance(found, Response) else JSONResponse(found)

    return checked


class _Answers:
    """The answers to the requests of the page."""

    def __init__(self, store: Store, videos: Videos, training: Training, pictures: Pictures, geometry: Geometry | None):
        self.store, self._videos, self._training, self._pictures = store, videos, training, pictures
        self._geometry, self.run = geometry, secrets.token_hex(8)
        self._files, self._flags = PageFiles(_PAGE), Flags(store.project.flags_file)

    async def page(self, request: Request) -> Response:
        return self._files.answer("page.html")

    async def file(self, request: Request) -> Response:
        return self._files.answer(request.path_params["name"])

    @_answering
    async def project(self, request: Request) -> Any:
        project = self.store.project
        names = project.keypoint_names
        return {
            "run": self.run,
            "folder": str(project.path),
            "file": project.files[0].name if len(project.files) == 1 else "the label files",
            "keypoints": names,
            "individuals": [one for one in project.individuals if one],
            "can_add": not project.individuals,
            "tracks": self.store.tracks(),
            "has_several": self.store.has_several,
            "edges": [[names.index(a), names.index(b)] for a, b in project.edges],
            "partners": project.partners,
            "images": self.store.images,
            "views": project.views,
            "moments": self.store.moments(),
            "has_calibration": self._geometry is not None,
            "has_suggestions": has_suggestions(self.store),
            "counts": self.store.counts(),
            "context_images": self.store.context_images,
            "videos": self._videos.names,
            "sessions": self._videos.sessions(),
            **self.store.scores(),
            **{name: self.store.changes(0)[name] for name in ("version", "predictions")},
        }

    @_answering
    async def changes(self, request: Request) -> Any:
        since = number_in(request.query_params.get("since", ""))
        if since < 0:
            raise HTTPException(400, "since must be a number")
        shown = request.query_params.get("shown", "")
        numbers = self._numbers(shown) if shown else []
        tags = await run_in_threadpool(lambda: {number: self._pictures.tag(number) for number in numbers})
        training = await run_in_threadpool(self._training.state)
        return {**self.store.changes(since), "training": training, "pictures": tags, "flagged": self._flagged()}

    @_answering
    async def train(self, request: Request) -> Any:
        await read_json(request)
        await run_in_threadpool(self._training.start)
        return await run_in_threadpool(self._training.state)

    @_answering
    async def stop(self, request: Request) -> Any:
        await read_json(request)
        await run_in_threadpool(self._training.stop)
        return await run_in_threadpool(self._training.state)

    @_answering
    async def reasons(self, request: Request) -> Any:
        find = {"suggested": find_suggested, "wrong": find_wrong}.get(request.path_params["kind"])
        if not find:
            raise HTTPException(404, "there are no such reasons")
        try:
            return {"found": await run_in_threadpool(find, self.store), "problem": ""}
        except UserError as error:
            return {"found": [], "problem": str(error)}

    @_answering
    async def frame(self, request: Request) -> Any:
        return self.store.frame(request.path_params["number"])

    @_answering
    async def frames(self, request: Request) -> Any:
        return [self.store.frame(number) for number in self._numbers(request.query_params.get("numbers", ""))]

    def _numbers(self, text: str) -> list[int]:
        """Returns the numbers of images in a list of them."""
        numbers = [number_in(one) for one in text.split(",")]
        if len(numbers) > _MOST_FRAMES or not all(0 <= number < len(self.store.images) for number in numbers):
            raise HTTPException(404, "there is no such image")
        return numbers

    @_answering
    async def image(self, request: Request) -> Any:
        number = request.path_params["number"]
        # Of the file before it is read: one that replaces it meanwhile has another tag.
        headers = {_PICTURE_HEADER: await run_in_threadpool(self._pictures.tag, number)}
        try:
            content = await run_in_threadpool(self._pictures.get, number, _PREVIEW in request.query_params)
        except UserError as error:
            return JSONResponse({"error": str(error)}, 422, headers)
        return Response(content, media_type="image/jpeg", headers=headers)

    @_answering
    async def video(self, request: Request) -> Any:
        video, _ = self._place(request)
        frames = await run_in_threadpool(self._videos.frame_count, video)
        return {"frames": frames, "images": list(self._videos.labelled(video, self.store.images).items())}

    @_answering
    async def trace(self, request: Request) -> Any:
        video, _ = self._place(request)
        if (kind := request.path_params["kind"]) not in TRACES:
            raise HTTPException(404, "there is no such trace")
        return await run_in_threadpool(self._videos.trace, video, kind, self.store.predictions)

    @_answering
    async def video_frame(self, request: Request) -> Any:
        video, frame = self._place(request)
        is_preview = _PREVIEW in request.query_params
        content = await run_in_threadpool(lambda: jpeg_of(self._videos.frame(video, frame), is_preview))
        return Response(content, media_type="image/jpeg")

    @_answering
    async def extract(self, request: Request) -> Any:
        await read_json(request)
        video, frame = self._place(request)
        return {"image": await run_in_threadpool(self._videos.extract, video, frame, self.store)}

    def _place(self, request: Request) -> tuple[int, int]:
        """Returns the number of a video and of its frame."""
        video, frame = (number_in(request.path_params.get(name, "0")) for name in ("video", "frame"))
        if not 0 <= video < len(self._videos.names) or frame < 0:
            raise HTTPException(404, "there is no such frame")
        return video, frame

    @_answering
    async def edit(self, request: Request) -> Any:
        given = await read_json(request)
        points = given.get("points")
        tracks = given.get("tracks", {})
        if not isinstance(given.get("revision"), str) or not isinstance(points, dict) or not isinstance(tracks, dict):
            raise HTTPException(400, "an edit has a revision, points and tracks")
        changes = {self._place_of(key): _point(value) for key, value in points.items()}
        names = {self._animal_of(key): _track(value) for key, value in tracks.items()}
        return await run_in_threadpool(self._edit, request.path_params["number"], given["revision"], changes, names)

    def _edit(self, number: int, revision: str, changes: dict[int, Point | None], tracks: dict[int, str]) -> Any:
        names = self.store.project.keypoint_names
        # A label of another program may lie outside; the page can hide it, or swap it with another.
        known = {tuple(point[:2]) for point in self.store.frame(number)["points"] if point}
        for index, point in changes.items():
            if point and point[:2] not in known:
                width, height = self._pictures.size_px(number)
                if not (-0.5 <= point[0] <= width - 0.5 and -0.5 <= point[1] <= height - 0.5):
                    raise UserError(
                        f"{names[index % len(names)]} at ({point[0]:g}, {point[1]:g}) is outside of "
                        f"{self.store.images[number]}, which has {width} x {height} pixels: place it in the picture"
                    )
        return self.store.edit(number, revision, changes, tracks)

    @_answering
    async def keep(self, request: Request) -> Any:
        await read_json(request)
        place = self._place_of(request.path_params["place"])
        return await run_in_threadpool(self.store.drop_conflict, request.path_params["number"], place)

    @_answering
    async def flag(self, request: Request) -> Any:
        is_flagged = (await read_json(request)).get("flagged")
        if not isinstance(is_flagged, bool):
            raise HTTPException(400, "flagged is true or false")
        await run_in_threadpool(self._flags.set, self.store.images[request.path_params["number"]], is_flagged)
        return {"flagged": self._flagged()}

    def _flagged(self) -> list[int]:
        return [number for number, image in enumerate(self.store.images) if image in self._flags]

    @_answering
    async def geometry(self, request: Request) -> Any:
        place = self._place_of(request.path_params["place"])
        if self._geometry is None:
            raise HTTPException(404, "there is no calibration")
        return await run_in_threadpool(self._geometry.of, request.path_params["number"], place, self._pictures.size_px)

    def _animal_of(self, text: str) -> int:
        if not 0 <= (animal := number_in(text)) < _MOST_ANIMALS:
            raise HTTPException(400, f"{text[:20]} is not an animal")
        return animal

    def _place_of(self, text: str) -> int:
        """Returns the place of a point, as in `Store.frame`."""
        project = self.store.project
        animals = len(project.individuals) or _MOST_ANIMALS
        if not 0 <= (place := number_in(text)) < len(project.keypoint_names) * animals:
            raise HTTPException(400, f"{text[:20]} is not a keypoint")
        return place


def _track(value: Any) -> str:
    """Returns the name of a track of JSON."""
    if not isinstance(value, str) or len(value) > _MOST_NAME or not value.isprintable() or value != value.strip():
        raise HTTPException(400, f"the name of a track has 1 to {_MOST_NAME} printable characters")
    return value


def _point(value: Any) -> Point | None:
    """Returns a point of JSON: [x, y, visibility] or null."""
    if value is None:
        return None
    is_list = isinstance(value, list) and len(value) == 3
    if not is_list or not all(type(number) in (int, float) and math.isfinite(number) for number in value):
        raise HTTPException(400, "a point is [x, y, visibility]")
    x, y, mark = value
    if max(abs(x), abs(y)) > _MOST_PX or mark not in (NOT_VISIBLE, VISIBLE):
        raise HTTPException(400, "a point is [x, y, visibility]")
    return float(x), float(y), int(mark)
