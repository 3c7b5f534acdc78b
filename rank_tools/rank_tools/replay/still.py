"""A still picture of a replay: a column for each rank, time downwards, its communications alone."""

from html import escape

from .events import SENDS, Call, Replay

COLUMN = 150
ROW = 22
TOP = 34
LEFT = 20
MOST = 60  # communications that a picture shows
INK = "#222222"
FILL = "#777777"


def still(replay: Replay) -> str:
    """SVG, readable in grey: bars for the waits in a call, bands over its members, arrows for messages."""
    together = replay.together[:MOST]
    rows = rows_of([call for calls in together for call in calls])
    ranks = sorted({lane.rank for lane in replay.lanes})
    x = {rank: LEFT + COLUMN * number + 20 for number, rank in enumerate(ranks)}
    height = TOP + ROW * (len(rows) + 1)
    width = LEFT + COLUMN * len(ranks)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" role="img" '
        f'font-family="sans-serif" font-size="12"><title>{escape(alternative(replay))}</title>',
        '<defs><marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="6" markerHeight="6" '
        f'orient="auto"><path d="M0 0L8 4L0 8z" fill="{INK}"/></marker></defs>',
        f'<rect width="{width}" height="{height}" fill="white"/>',
    ]
    for rank in ranks:
        parts.append(f'<text x="{x[rank] - 16}" y="18" font-weight="bold">rank {rank}</text>')
        parts.append(
            f'<line x1="{x[rank]}" x2="{x[rank]}" y1="{TOP - 8}" y2="{height - 6}" stroke="#bbbbbb"/>'
        )
    for calls in together:
        parts += bars(calls, rows, x)
        parts += message(calls, rows, x) if calls[0].is_message else band(calls, rows, x)
    return "\n".join([*parts, "</svg>", ""])


def rows_of(calls: list[Call]) -> dict[int, int]:
    """{row of the replay: row of the picture}: those in which a communication begins or ends."""
    shown = [call for call in calls if not (call.is_message and call.ended and call.name == "recv")]
    ends = {call.ended.row for call in calls if call.ended and not is_sent(call)}
    used = {call.begun.row for call in shown} | ends
    return {row: number for number, row in enumerate(sorted(used))}


def is_sent(call: Call) -> bool:
    return call.is_message and call.name == "send"


def y_of(row: int, rows: dict[int, int]) -> int:
    return TOP + ROW * rows[row]


def bars(calls: list[Call], rows: dict[int, int], x: dict[int, int]) -> list[str]:
    parts = []
    for call in calls:
        if call.is_message and call.ended is not None:
            continue  # the arrow says it
        top = y_of(call.begun.row, rows)
        bottom = y_of(call.ended.row, rows) if call.ended else TOP + ROW * len(rows)
        dashes = "" if call.ended else ' stroke-dasharray="3 2"'
        fill = FILL if call.ended else "white"
        parts.append(
            f'<rect x="{x[call.rank] - 5}" y="{top}" width="10" height="{max(8, bottom - top)}" rx="3" '
            f'fill="{fill}" stroke="{INK}"{dashes}/>'
        )
        to = (
            ""
            if call.peer is None
            else f" {'to' if call.operation in ('send', 'isend') else 'from'} {call.peer}"
        )
        parts.append(f'<text x="{x[call.rank] + 10}" y="{top + 10}">{escape(call.name + to)}</text>')
    return parts


def band(calls: list[Call], rows: dict[int, int], x: dict[int, int]) -> list[str]:
    if len(calls) < max(2, len(calls[0].members)):
        return []
    row = y_of(max(call.begun.row for call in calls), rows)
    places = [x[call.rank] for call in calls]
    width = max(places) - min(places)
    return [f'<rect x="{min(places)}" y="{row + 14}" width="{width}" height="5" fill="{FILL}"/>']


def message(calls: list[Call], rows: dict[int, int], x: dict[int, int]) -> list[str]:
    send = next((call for call in calls if call.operation in SENDS), None)
    receive = next((call for call in calls if call is not send), None)
    if send is None or receive is None:
        return []
    end = receive.ended or receive.begun
    side = -7 if x[send.rank] < x[receive.rank] else 7
    way = f"{send.name} to {send.peer}"
    return [
        f'<text x="{x[send.rank] + 10}" y="{y_of(send.begun.row, rows) + 1}">{escape(way)}</text>',
        f'<line x1="{x[send.rank]}" y1="{y_of(send.begun.row, rows) + 4}" x2="{x[receive.rank] + side}" '
        f'y2="{y_of(end.row, rows) + 4}" stroke="{INK}" stroke-width="1.5" marker-end="url(#head)"/>',
    ]


def alternative(replay: Replay) -> str:
    """What the picture shows, in words."""
    told = []
    for calls in replay.together[:MOST]:
        call = calls[0]
        if call.is_message:
            told.append(f"{call.name} between rank {call.rank} and rank {call.peer}")
        else:
            missing = sorted(set(call.members) - {other.rank for other in calls})
            without = f" without rank {', '.join(map(str, missing))}" if missing else ""
            told.append(f"{call.name} of {len(calls)} ranks{without}")
    more = len(replay.together) - MOST
    return "; ".join(told) + (f"; {more} more" if more > 0 else "")
