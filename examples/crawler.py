"""A web crawler: fetchers on a mesh, which return links through a port. It serves the site that it crawls, on this machine."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from html.parser import HTMLParser
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import NamedTuple
from urllib.error import HTTPError
from urllib.parse import urljoin
from urllib.request import ProxyHandler, build_opener

from monarch.actor import Actor, Channel, Port, current_rank, endpoint, this_host

FETCHERS = 4
PAGES = 60


class Page(NamedTuple):
    """The title and the links of an address."""

    url: str
    fetcher: int
    status: int
    title: str
    links: list[str]


class Document(HTMLParser):
    """Keeps the title and the links of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.title = ""
        self.links: list[str] = []
        self.in_title = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.in_title = tag == "title"
        self.links += [value for name, value in attrs if tag == "a" and name == "href" and value]

    def handle_data(self, data: str) -> None:
        if self.in_title:
            self.title += data

    def handle_endtag(self, tag: str) -> None:
        self.in_title = False


class Fetcher(Actor):
    """Fetches a page and reports it; a page that is missing is an answer too, not a failure."""

    def __init__(self) -> None:
        self.number = current_rank().rank  # here the position among all; in an endpoint that in the mesh that was called
        self.opener = build_opener(ProxyHandler({}))  # the site is on this machine, whatever proxy is configured

    @endpoint
    def fetch(self, url: str, found: Port[Page]) -> None:
        try:
            with self.opener.open(url, timeout=10) as answer:
                document = Document()
                document.feed(answer.read().decode())
                links = [urljoin(url, link) for link in document.links]
                found.send(Page(url, self.number, answer.status, document.title, links))
        except HTTPError as missing:
            with missing:
                found.send(Page(url, self.number, missing.code, "", []))


class Site(BaseHTTPRequestHandler):
    """Page n links to pages 2n+1 and 2n+2 and back to the first; beyond the last page there is nothing."""

    def do_GET(self) -> None:
        number = int(self.path.removeprefix("/page/") or 0) if self.path.startswith("/page/") else PAGES
        if number < PAGES:
            links = "".join(f'<a href="{target}">{target}</a> ' for target in (2 * number + 1, 2 * number + 2, 0))
            body = f"<html><title>Page {number}</title><body>{links}</body></html>".encode()
            self.send_response(200)
            self.send_header("Content-Type", "text/html; charset=utf-8")
        else:
            body = b""
            self.send_response(404)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Prints nothing: the crawler prints."""


@contextmanager
def site() -> Iterator[str]:
    """Serves the site from a thread; gives the address of its first page."""
    with ThreadingHTTPServer(("127.0.0.1", 0), Site) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/page/0"
        finally:
            server.shutdown()
            thread.join()


def crawl(fetchers: Fetcher, start: str) -> list[Page]:
    """Every page that can be reached, each fetched once. A fetcher that reports gets the next address, so fast ones do more."""
    port, receiver = Channel[Page].open()
    waiting, known = deque([start]), {start}
    idle = deque(range(FETCHERS))
    pages: list[Page] = []
    while waiting or len(idle) < FETCHERS:
        while waiting and idle:
            fetchers.slice(fetchers=idle.popleft()).fetch.broadcast(waiting.popleft(), port)
        page = receiver.recv().get()
        pages.append(page)
        idle.append(page.fetcher)
        for link in page.links:
            if link not in known:
                known.add(link)
                waiting.append(link)
    return pages


def main() -> None:
    fetchers = this_host().spawn_procs(per_host={"fetchers": FETCHERS}).spawn("fetchers", Fetcher)
    with site() as start:
        pages = crawl(fetchers, start)
    found = [page for page in pages if page.status == 200]
    for page in sorted(found, key=lambda page: page.url)[:3]:
        print(f"{page.title}: {len(page.links)} links")
    print(f"{len(found)} pages, {len(pages) - len(found)} dead links")
    print(f"all fetchers took part: {len({page.fetcher for page in pages}) == FETCHERS}")


if __name__ == "__main__":
    main()
