"""The read-only page at control's address: three files, no build, nothing from elsewhere.

The page holds no data: it asks the API as anybody does, with the operator's token where there is one. May not change
anything, nor let another site frame it or run a script in it.
"""

from __future__ import annotations

from importlib.resources import files

from starlette.requests import Request
from starlette.responses import Response

_KINDS = {"index.html": "text/html", "page.css": "text/css", "page.js": "text/javascript"}
_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "img-src data:; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}
#: What anybody may read: without a token there is nothing in it.
OPEN = frozenset({"/", "/web/page.css", "/web/page.js"})


async def answer(request: Request) -> Response:
    name = request.url.path.rpartition("/")[2] or "index.html"
    text = files(__name__).joinpath(name).read_bytes()
    return Response(text, headers=_HEADERS, media_type=_KINDS[name])
