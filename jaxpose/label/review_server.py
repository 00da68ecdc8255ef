"""The server of the page that shows the review of tracks."""

import functools
from collections.abc import Awaitable, Callable
from typing import Any

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from jaxpose.errors import UserError
from jaxpose.label.guard import Guard, PageFiles, Tokens, number_in, read_json, refuse
from jaxpose.label.review import Review
from jaxpose.label.server import jpeg_of
from jaxpose.label.store import Stale
from jaxpose.tracking.corrections import ANSWERS
from jaxpose.tracking.review_file import Place

_PAGE = (
    "review.html",
    "page.css",
    "review.js",
    "frame.js",
    "keys.js",
    "pictures.js",
    "pointer.js",
    "requests.js",
    "stage.js",
    "tracker.js",
    "view.js",
    "icon.svg",
)
_MOST_TEXT = 200


def make_review_app(review: Review, tokens: Tokens) -> Guard:
    """Returns the application of a review; `tokens` are the secrets that open the page."""
    answers = _Answers(review)
    routes = [
        Route("/", answers.page),
        Route("/{name:str}", answers.file),
        Route("/api/review", answers.review),
        Route("/api/answer", answers.answer, methods=["POST"]),
        Route("/api/track", answers.track, methods=["POST"]),
        Route("/api/stop", answers.stop, methods=["POST"]),
        Route("/api/poses/{frame:str}", answers.poses),
        Route("/video/0/{frame:str}", answers.video_frame),
    ]
    return Guard(Starlette(routes=routes, exception_handlers={HTTPException: refuse}), tokens)


def _answering(answer: Callable[..., Any]) -> Callable[..., Awaitable[Response]]:
    """Makes an answer of a method of `_Answers` that returns JSON, and of its errors."""

    @functools.wraps(answer)
    async def checked(self: "_Answers", request: Request) -> Response:
        try:
            found = await answer(self, request)
        except Stale:
            raise HTTPException(409, "the tracks or their corrections have changed meanwhile: look again") from None
        except UserError as error:
            raise HTTPException(422, str(error)) from None
        except OSError as error:
            raise HTTPException(507, f"{error.filename}: {error.strerror}") from None
        return found if isinstance(found, Response) else JSONResponse(found)

    return checked


class _Answers:
    """The answers to the requests of the page."""

    def __init__(self, review: Review):
        self._review, self._files = review, PageFiles(_PAGE)

    async def page(self, request: Request) -> Response:
        return self._files.answer("review.html")

    async def file(self, request: Request) -> Response:
        return self._files.answer(request.path_params["name"])

    @_answering
    async def review(self, request: Request) -> Any:
        state = await run_in_threadpool(self._review.state, request.query_params.get("revision", ""))
        return {"name": str(self._review.tracks), "corrections": str(self._review.corrections), **state}

    @_answering
    async def track(self, request: Request) -> Any:
        await read_json(request)
        return await run_in_threadpool(self._review.track)

    @_answering
    async def stop(self, request: Request) -> Any:
        await read_json(request)
        return await run_in_threadpool(self._review.stop)

    @_answering
    async def answer(self, request: Request) -> Any:
        given = await read_json(request)
        place, answer, revision = (given.get(name) for name in ("place", "answer", "revision"))
        texts = [*place, revision] if isinstance(place, list) else []
        if len(texts) != len(Place._fields) + 1 or not all(isinstance(one, str) for one in texts):
            raise HTTPException(400, "an answer has a place and a revision")
        if max(map(len, texts)) > _MOST_TEXT or min(map(number_in, texts[:3])) < 0:
            raise HTTPException(400, "an answer has a place and a revision")
        # An undo also brings back what a person wrote by hand.
        if answer not in (*ANSWERS, "", None) and not (isinstance(answer, str) and len(answer) <= _MOST_TEXT):
            raise HTTPException(400, "there is no such answer")
        return await run_in_threadpool(self._review.answer, texts[-1], Place(*texts[:-1]), answer)

    @_answering
    async def poses(self, request: Request) -> Any:
        return await run_in_threadpool(self._review.poses, self._frame(request))

    @_answering
    async def video_frame(self, request: Request) -> Any:
        frame = self._frame(request)
        content = await run_in_threadpool(lambda: jpeg_of(self._review.frames.get(self._review.video, frame)))
        return Response(content, media_type="image/jpeg")

    def _frame(self, request: Request) -> int:
        if (frame := number_in(request.path_params["frame"])) < 0:
            raise HTTPException(404, "there is no such frame")
        return frame
