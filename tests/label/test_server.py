"""The server of `jaxpose label`: who may ask, what is refused, and what a kill leaves."""

import contextlib
import http.client
import json
import os
import re
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import cv2
import numpy as np
import pytest

from jaxpose.label.__main__ import main
from jaxpose.label.serving import listen
from tests.label.small_projects import SIZE_PX, Served, header, image_name, serving, write_image, write_project

Answer = tuple[int, dict[str, str], bytes]


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project: two plain images, a link out, one image turned by EXIF, one of 16 bits, and one cut short."""
    folder = tmp_path_factory.mktemp("label")
    write_project(folder / "p", 2)
    write_image(folder / "secret.png", 5)
    (folder / "p" / image_name(20)).symlink_to(folder / "secret.png")
    exif = b"MM\0*\0\0\0\x08\0\x01\x01\x12\0\x03\0\0\0\x01\0\x06\0\0\0\0\0\0"
    ok, jpeg = cv2.imencode(".jpg", np.zeros((20, 30, 3), np.uint8))
    assert ok
    block = b"Exif\0\0" + exif
    app1 = b"\xff\xe1" + (len(block) + 2).to_bytes(2, "big") + block
    (folder / "p" / "labeled-data/v/img030.jpg").write_bytes(jpeg.tobytes()[:2] + app1 + jpeg.tobytes()[2:])
    deep = np.linspace(0, 4000, 600).reshape(20, 30).astype(np.uint16)
    assert cv2.imwrite(str(folder / "p" / image_name(40)), deep)
    (folder / "p" / "labeled-data/v/img050.jpg").write_bytes(jpeg.tobytes()[:-30])
    return folder / "p"


@pytest.fixture(scope="module")
def served(project: Path) -> Iterator[Served]:
    with serving(project) as found:
        yield found


@pytest.fixture(scope="module")
def cookie(served: Served) -> str:
    """The cookie for which the printed token is swapped."""
    status, headers, page = ask(served, "/?" + urlsplit(served.address).query)
    assert status == 200 and b"<!doctype html>" in page
    found = headers["set-cookie"]
    assert found.endswith("; Path=/; HttpOnly; SameSite=Strict")
    return found.partition(";")[0]


def ask(served: Served, path: str, method: str = "GET", body: bytes = b"", **headers: str) -> Answer:
    """Status, headers and body of an answer; header names are given with underscores."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", served.port, timeout=60)) as connection:
        connection.putrequest(method, path, skip_host=True)
        for name, value in ({"Host": f"127.0.0.1:{served.port}", "Content-Length": str(len(body))} | named).items():
            connection.putheader(name, value)
        connection.endheaders()
        if body:
            connection.send(body)
        # A server that is killed leaves an answer that must be closed as well.
        with connection.getresponse() as answer:
            content = answer.read()
    return answer.status, {name.lower(): value for name, value in answer.getheaders()}, content


def post(served: Served, cookie: str, path: str, given: Any, **headers: str) -> Answer:
    origin = f"http://127.0.0.1:{served.port}"
    return ask(
        served,
        path,
        "POST",
        given if isinstance(given, bytes) else json.dumps(given).encode(),
        **{"Cookie": cookie, "Origin": origin, "Content_Type": "application/json"} | headers,
    )


def test_only_a_browser_with_the_token_on_this_machine_is_answered(served: Served, cookie: str) -> None:
    own, port = urlsplit(served.address).query, served.port
    for path in ("/", "/api/project", "/image/0", "/page.js", "/nothing"):
        assert ask(served, path)[0] == ask(served, path, Cookie=f"{cookie}x")[0] == 403
    assert ask(served, "/?token=wrong")[0] == ask(served, "/?token=%C3%A9")[0] == 403
    # The token opens only the page.
    assert ask(served, f"/api/project?{own}")[0] == 403
    assert ask(served, "/api/project", Cookie=cookie)[0] == 200
    # A name that resolves to this machine, and the page of another site.
    for host in ("evil.example", f"evil.example:{port}", f"127.0.0.1.evil.example:{port}", "", "[::1"):
        assert ask(served, "/api/project", Cookie=cookie, Host=host)[0] in (400, 403), host
        assert ask(served, f"/?{own}", Host=host)[0] in (400, 403), host
    # An SSH tunnel may have another port; the cookie is named after it.
    for host in ("localhost:9999", "[::1]:9999", "localhost"):
        assert ask(served, f"/?{own}", Host=host)[0] == 200
    assert ask(served, "/api/project", Cookie=cookie, Origin="http://evil.example")[0] == 403
    # No stack trace, no other host, no frame around the page.
    status, headers, content = ask(served, "/page.css", Cookie=cookie)
    assert status == 200 and headers["content-security-policy"].startswith("default-src 'self'")
    assert headers["x-content-type-options"] == "nosniff" and "server" not in headers
    assert headers["cross-origin-resource-policy"] == "same-origin" and headers["cache-control"] == "no-store"


def test_only_the_page_itself_may_write(served: Served, cookie: str, project: Path) -> None:
    before = (project / "CollectedData.csv").read_bytes()
    frame = json.loads(ask(served, "/api/frame/1", Cookie=cookie)[2])
    given = {"revision": frame["revision"], "points": {"0": [1.5, 2.5, 2]}}
    for headers in (
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Origin": f"https://127.0.0.1:{served.port}"},
        {"Cookie": ""},
    ):
        assert post(served, cookie, "/api/frame/1", given, **headers)[0] == 403
    body = json.dumps(given).encode()
    assert ask(served, "/api/frame/1", "POST", body, Cookie=cookie, Content_Type="application/json")[0] == 403
    for path in ("/api/frame/1", "/api/frame/1/flag", "/api/frame/1/keep/0", "/api/video/0/0"):
        assert post(served, cookie, path, given, Content_Type="text/plain")[0] == 415
    for method in ("OPTIONS", "PUT", "DELETE"):
        assert ask(served, "/api/frame/1", method, Cookie=cookie)[0] == 403
    assert json.loads(ask(served, "/api/frame/1", Cookie=cookie)[2]) == frame
    assert (project / "CollectedData.csv").read_bytes() == before


def test_wrong_and_huge_bodies_are_refused(served: Served, cookie: str) -> None:
    revision = json.loads(ask(served, "/api/frame/1", Cookie=cookie)[2])["revision"]
    many = "9" * 5000
    for points in ({"9": None}, {"-1": None}, {"x": None}, {"²": None}, {many: None}, {"0": [1, 2]}, {"0": [1, 2, 3]},
                   {"0": [True, 2, 2]}, {"0": [1e300, 2, 2]}, {"0": "1"}, []):  # fmt: skip
        assert post(served, cookie, "/api/frame/1", {"revision": revision, "points": points})[0] == 400, points
    for body in (b"", b"[1]", b"{", b'{"revision": "a", "points": {"0": [NaN, 1, 2]}}', b"[" * 60_000):
        assert post(served, cookie, "/api/frame/1", body)[0] == 400
    assert post(served, cookie, "/api/frame/99", {})[0] == post(served, cookie, "/api/frame/99/flag", {})[0] == 404
    for flag in ({}, {"flagged": 1}, {"flagged": "true"}, {"flagged": None}):
        assert post(served, cookie, "/api/frame/1/flag", flag)[0] == 400, flag
    # Half a pixel around the image of 60 x 40 pixels belongs to it.
    for point in ([59.501, 3, 2], [3, -0.501, 2], [999999, -999999, 2]):
        status, _, content = post(served, cookie, "/api/frame/1", {"revision": revision, "points": {"2": point}})
        assert status == 422 and "right_paw at (" in json.loads(content)["error"]
        assert "img010.png, which has 60 x 40 pixels: place it in the picture" in json.loads(content)["error"]
    for since in ("", "-1", "%C2%B2", many):
        assert ask(served, f"/api/changes?since={since}", Cookie=cookie)[0] == 400
    # 100 MB are refused by their length, before they are sent.
    with socket.create_connection(("127.0.0.1", served.port), 60) as connection:
        head = (
            f"POST /api/frame/1 HTTP/1.1\r\nHost: 127.0.0.1:{served.port}\r\nOrigin: http://127.0.0.1:{served.port}\r\n"
        )
        head += f"Cookie: {cookie}\r\nContent-Type: application/json\r\nContent-Length: 100000000\r\n\r\n"
        connection.sendall(head.encode() + b" " * 1000)
        assert b" 413 " in connection.recv(1000)
    # Parts without a length are counted.
    with socket.create_connection(("127.0.0.1", served.port), 60) as connection:
        part = b"4000\r\n" + b" " * 0x4000 + b"\r\n"
        head = head.replace("Content-Length: 100000000", "Transfer-Encoding: chunked")
        connection.sendall(head.encode() + part * 5)
        assert b" 413 " in connection.recv(1000)


@pytest.mark.slow
def test_a_slow_client_is_refused_and_keeps_nobody_waiting(served: Served, cookie: str) -> None:
    host = f"127.0.0.1:{served.port}"
    lines = ["POST /api/frame/1 HTTP/1.1", f"Host: {host}", f"Origin: http://{host}", f"Cookie: {cookie}"]
    lines += ["Content-Type: application/json", "Content-Length: 99", "", '{"revision"']
    before = ask(served, "/api/frame/1", Cookie=cookie)[2]
    with contextlib.ExitStack() as stack:
        slow = [stack.enter_context(socket.create_connection(("127.0.0.1", served.port), 60)) for _ in range(20)]
        for connection in slow:
            connection.sendall("\r\n".join(lines).encode())
        # The end of the body never comes; others are answered meanwhile.
        assert ask(served, "/api/frame/1", Cookie=cookie)[2] == before
        assert all(b" 408 " in connection.recv(1000) for connection in slow)
    assert ask(served, "/api/frame/1", Cookie=cookie)[2] == before


def test_no_path_leads_to_a_file_and_a_link_out_is_not_followed(served: Served, cookie: str, project: Path) -> None:
    for path in ("/../secret.png", "/%2e%2e/secret.png", "/..%2fserver.py", "/server.py", "/image/..%2f..%2fsecret.png",
                 "/CollectedData.csv", f"/image/{project}/CollectedData.csv", "/image/0/../../secret.png", "/image/-1",
                 "/image/1e3", "/image/99999999999999999999", f"/image/{'9' * 5000}", "//etc/passwd"):  # fmt: skip
        status, _, content = ask(served, path, Cookie=cookie)
        assert status == 404, (path, content)
    found = json.loads(ask(served, "/api/project", Cookie=cookie)[2])
    number = found["images"].index(image_name(20))
    status, _, content = ask(served, f"/image/{number}", Cookie=cookie)
    assert status == 422 and "is a link to" in json.loads(content)["error"]
    assert found["counts"][0] == 2 and found["keypoints"] == ["nose", "left_paw", "right_paw"]


def test_images_are_those_that_jaxpose_reads(served: Served, cookie: str, project: Path) -> None:
    images = json.loads(ask(served, "/api/project", Cookie=cookie)[2])["images"]

    def picture(name: str) -> np.ndarray:
        status, headers, content = ask(served, f"/image/{images.index(name)}", Cookie=cookie)
        assert status == 200 and headers["content-type"] == "image/jpeg", content
        return cv2.imdecode(np.frombuffer(content, np.uint8), cv2.IMREAD_COLOR)

    plain = cv2.imread(str(project / image_name(0)))
    assert picture(image_name(0)).shape == (SIZE_PX[1], SIZE_PX[0], 3)
    assert plain is not None and np.abs(picture(image_name(0)).astype(int) - plain).mean() < 4
    # 12 of 16 bits: 4095 is white.
    assert picture(image_name(40)).max() in range(240, 256)
    status, _, content = ask(served, f"/image/{images.index('labeled-data/v/img030.jpg')}", Cookie=cookie)
    assert status == 422 and "--orientation upright or --orientation stored" in json.loads(content)["error"]
    # A browser would show the rest in grey.
    status, _, content = ask(served, f"/image/{images.index('labeled-data/v/img050.jpg')}", Cookie=cookie)
    assert status == 422 and "does not decode" in json.loads(content)["error"]
    # An image that another program replaces is shown as it is now.
    assert cv2.imwrite(str(project / image_name(0)), np.full((SIZE_PX[1], SIZE_PX[0], 3), 99, np.uint8))
    assert np.abs(picture(image_name(0)).astype(int) - 99).max() < 4
    # Labels and images need no jax.
    assert "jaxlib" not in Path(f"/proc/{served.process.pid}/maps").read_text()


def test_a_second_one_and_wrong_arguments_are_refused(
    served: Served, project: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = write_project(tmp_path / "other")
    for arguments, problem in (
        ([project], rf"already open for .*: process \d+ on .*, http://127.0.0.1:{served.port}; use that page"),
        ([other, "--port", served.port], rf"--port is {served.port}, which cannot be used: Address already in use"),
        ([other, "--port", 70_000], "--port is 70000; it must be 1 to 65535"),
        ([tmp_path / "absent"], "does not exist"),
    ):
        assert main([*map(str, arguments), "--no-browser"]) == 2
        assert re.search(problem, capsys.readouterr().err)
    assert sorted(os.listdir(other)) == ["CollectedData.csv", "labeled-data"]


def open_page(served: Served) -> str:
    """The cookie of a new browser."""
    return ask(served, "/?" + urlsplit(served.address).query)[1]["set-cookie"].partition(";")[0]


def flag(served: Served, number: int, is_flagged: bool) -> list[int]:
    status, _, content = post(served, open_page(served), f"/api/frame/{number}/flag", {"flagged": is_flagged})
    assert status == 200, content
    return json.loads(content)["flagged"]


def test_flags_outlive_a_kill_and_no_label_file_has_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    project, file = write_project(tmp_path / "p"), tmp_path / "p/.jaxpose_label.CollectedData.csv.flags.json"
    before = (project / "CollectedData.csv").read_bytes()
    with serving(project) as served:
        assert flag(served, 2, True) == [2] and flag(served, 0, True) == [0, 2]
        served.kill()
    # An image that is away keeps its flag.
    (project / image_name(20)).rename(project / "away.png")
    with serving(project) as served:
        changes = json.loads(ask(served, "/api/changes?since=0", Cookie=open_page(served))[2])
        assert changes["flagged"] == [0] and flag(served, 0, False) == []
        assert image_name(20) in file.read_text() and image_name(0) not in file.read_text()
        assert served.stop() == 0
    (project / "away.png").rename(project / image_name(20))
    whole = file.read_bytes()
    file.write_bytes(whole[:-20])
    assert main([str(project), "--no-browser"]) == 2
    assert re.search(f"{file} is damaged.*remove it to go on without the flags", capsys.readouterr().err)
    file.write_bytes(whole)
    with serving(project) as served:
        assert flag(served, 3, True) == [2, 3] and flag(served, 2, False) == [3] and flag(served, 3, False) == []
        assert served.stop() == 0
    assert not file.exists() and (project / "CollectedData.csv").read_bytes() == before


def test_a_killed_server_loses_no_label_and_ctrl_c_writes_them(tmp_path: Path) -> None:
    project = write_project(tmp_path / "p")
    with serving(project, "--orientation", "upright") as served:
        assert served.lines[0] == served.address
        _, headers, _ = ask(served, "/?" + urlsplit(served.address).query)
        cookie = headers["set-cookie"].partition(";")[0]
        frame = json.loads(ask(served, "/api/frame/1", Cookie=cookie)[2])
        given = {"revision": frame["revision"], "points": {"0": [1.5, 2.25, 2]}}
        status, _, content = post(served, cookie, "/api/frame/1", given)
        assert status == 200 and json.loads(content)["points"][0] == [1.5, 2.25, 2]
        # Another browser, on the state before.
        assert post(served, cookie, "/api/frame/1", given)[0] == 409
        served.kill()
    assert image_name(10) not in (project / "CollectedData.csv").read_text()
    with serving(project) as served:
        # A browser goes away in the middle of a request.
        host = f"127.0.0.1:{served.port}"
        _, headers, _ = ask(served, "/?" + urlsplit(served.address).query)
        cookie = headers["set-cookie"].partition(";")[0]
        lines = (
            "POST /api/frame/1 HTTP/1.1", f"Host: {host}", f"Origin: http://{host}", f"Cookie: {cookie}",
            "Content-Type: application/json", "Content-Length: 99",
        )  # fmt: skip
        with socket.create_connection(("127.0.0.1", served.port), 60) as connection:
            connection.sendall("\r\n".join([*lines, "", '{"revision"']).encode())
            connection.shutdown(socket.SHUT_WR)
            connection.recv(1000)
        assert served.stop() == 0
        assert "Traceback" not in "\n".join(served.lines)
        assert "1 label of a killed session: written to the label files" in served.lines
        assert "2 of 6 images labelled; Ctrl-C ends this" in served.lines
        assert any(
            re.match(r"from another machine: ssh -L (\d+):127.0.0.1:\1 \S+, then", line) for line in served.lines
        )
        # Also just after the start, when the server does not run yet.
        assert served.lines[-2].startswith("from another machine")
        assert served.lines[-1] == "all labels are in the label files"
    rows = f"{image_name(0)},1.50,2,,,30.125,4\n{image_name(10)},1.5,2.25,,,,\n"
    assert (project / "CollectedData.csv").read_text() == header() + rows
    assert [name for name in os.listdir(project) if name.startswith(".")] == []


def test_two_that_start_at_the_same_time_have_ports_of_their_own() -> None:
    sockets = [listen(None), listen(None)]
    try:
        assert len({one.getsockname()[1] for one in sockets}) == 2
    finally:
        for one in sockets:
            one.close()
