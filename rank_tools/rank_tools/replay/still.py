"""A still picture of a replay: a column for each rank, time downwards, its communications alone."""

from html import escape
from itertools import groupby

from .events import SENDS, Call, Replay, Span, listed, slots_of, spans

COLUMN = 130  # at least
WIDEST = 1000  # of the picture
LETTER = 6.3  # mean width in a font of 12 pixels
ROW = 22
ROWS = 42  # of calls, so that a picture is no higher than 1,400 pixels
TOP = 34
LEFT = 20
SLOT = 12  # between bars of one rank at the same time
LONGEST = 26  # letters of a value
INK = "#222222"
FILL = "#777777"
PALE = "#eeeeee"


def still(replay: Replay) -> str:
    """SVG, readable in grey: bars for the waits in a call, bands over its members, arrows for messages.

    Behind a line that launches several collectives, such as a backward, lies a pale box.
    """
    return Picture(replay).svg()


class Picture:
    """What is shown, and where: of a replay that is too long the beginning, of a hang the end.

    Attributes:
        rows: {row of the replay: row of the picture}, those in which something shown begins or ends.
        slots: {id of a call: how many calls of its rank are open when it begins}.
    """

    def __init__(self, replay: Replay) -> None:
        self.replay = replay
        self.ranks = sorted({lane.rank for lane in replay.lanes})
        self.sets: list[list[Call]] = []
        used: set[int] = set()
        for calls in replay.together[:: -1 if replay.waits else 1]:
            more = used.union(*(rows_of(call) for call in calls))
            if len(more) > ROWS:
                break
            used = more
            self.sets.append(calls)
        self.sets.sort(key=lambda calls: min(call.begun.row for call in calls))
        shown = {id(call.begun) for calls in self.sets for call in calls}
        self.spans = [span for span in spans(replay) if all(id(call.begun) in shown for call in span.calls)]
        used.update(row for span in self.spans for row in (span.begin, span.end))
        self.rows = {row: number for number, row in enumerate(sorted(used))}
        self.slots = slots_of([call for calls in self.sets for call in calls if has_bar(call)])
        labels = [label(call) + "  " * self.slots.get(id(call), 0) for calls in self.sets for call in calls]
        labels += [f"{words}    " for words in replay.waits.values()]  # bold ones are wider
        labels += [cut(f"  {span.line}: {span.source}", LONGEST) for span in self.spans]
        letters = max(map(len, labels), default=0)
        most = (WIDEST - LEFT) // len(self.ranks)
        self.column = min(max(COLUMN, int(30 + LETTER * letters)), max(COLUMN, most))
        self.x = {rank: LEFT + self.column * number + 20 for number, rank in enumerate(self.ranks)}
        self.bottom = TOP + ROW * len(self.rows)

    def svg(self) -> str:
        left_out = len(self.replay.together) - len(self.sets)
        width = max(LEFT + self.column * len(self.ranks), 360)
        height = self.bottom + ROW * (1 + bool(left_out) + bool(self.replay.parted))
        more = f"… {left_out:,} communications {'before' if self.replay.waits else 'after'} these"
        parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" role="img" '
            f'font-family="sans-serif" font-size="12"><title>{escape(self.alternative())}</title>',
            '<defs><marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="6" markerHeight="6" '
            f'orient="auto"><path d="M0 0L8 4L0 8z" fill="{INK}"/></marker></defs>',
            f'<rect width="{width}" height="{height}" fill="white"/>',
            *(part for span in self.spans for part in self.box(span)),
        ]
        for rank in self.ranks:
            x = self.x[rank]
            parts.append(text(x - 16, 18, f"rank {rank}", bold=True))
            parts.append(f'<line x1="{x}" x2="{x}" y1="{TOP - 8}" y2="{self.bottom + 4}" stroke="#bbbbbb"/>')
            parts.append(text(x + 10, self.bottom + 12, self.fit(self.replay.waits.get(rank, "")), bold=True))
        for calls in self.sets:
            parts += [self.bar(call) for call in calls if has_bar(call)]
            parts += self.arrow(calls) if calls[0].is_message else self.band(calls)
        for calls in self.sets:
            for call in calls:
                parts += self.words(call) if has_bar(call) else []
        if self.replay.parted and self.replay.parted in self.sets:
            y = self.y(min(call.begun.row for call in self.replay.parted)) - 5
            parts.append(f'<line x2="{width}" y1="{y}" y2="{y}" stroke="{INK}" stroke-dasharray="6 3"/>')
            parts.append(
                text(LEFT, height - 8, "below the dashed line the ranks call different things", bold=True)
            )
        parts += [text(LEFT, height - 8 - ROW * bool(self.replay.parted), more)] if left_out else []
        words = [part for part in parts if part.startswith("<text")]
        shapes = [part for part in parts if not part.startswith("<text")]
        halo = '<g paint-order="stroke" stroke="white" stroke-width="3">'
        return "\n".join([*shapes, halo, *words, "</g>", "</svg>", ""])

    def y(self, row: int) -> int:
        return TOP + ROW * self.rows[row]

    def fit(self, words: str, slot: int = 0) -> str:
        return cut(words, int((self.column - 26 - SLOT * slot) / LETTER))

    def box(self, span: Span) -> list[str]:
        x, top = self.x[span.rank] - 14, self.y(span.begin) - 4
        height = self.y(span.end) - top - 8
        return [
            f'<rect x="{x}" y="{top}" width="{self.column - 10}" height="{height}" fill="{PALE}"/>',
            text(x + 24, top + 14, self.fit(f"{span.line}: {span.source}", 1)),
        ]

    def bar(self, call: Call) -> str:
        x, top = self.x[call.rank] + SLOT * self.slots[id(call)], self.y(call.begun.row)
        height = (self.y(call.ended.row) if call.ended else self.bottom) - top
        style = f'fill="{FILL}"' if call.ended else 'fill="white" stroke-dasharray="3 2"'
        return f'<rect x="{x - 5}" y="{top}" width="10" height="{height}" rx="3" {style} stroke="{INK}"/>'

    def words(self, call: Call) -> list[str]:
        """What it hands in, where it begins; what it has got, where it ends."""
        parts = [
            self.beside(call, call.begun.row, label(call), any(call is other for other in self.replay.parted))
        ]
        got = " ".join(text for text in changed(call) if is_short(text))
        if call.ended and got:
            parts.append(self.beside(call, call.ended.row, f"→ {got}", False, call.name))
        return parts

    def beside(self, call: Call, row: int, words: str, bold: bool, name: str = "") -> str:
        """``name`` tells whose words these are, where they stand beside another call's bar."""
        open_slots = [
            self.slots[id(other)]
            for calls in self.sets
            for other in calls
            if other.rank == call.rank and id(other) in self.slots and other.begun.row <= row
            if other.ended is None or row < other.ended.row
        ]
        slot = max(open_slots, default=0)
        words = words if slot == self.slots[id(call)] else f"{name} {words}".lstrip()
        x = self.x[call.rank] + 10 + SLOT * slot
        return text(x, self.y(row) + 10, self.fit(words, slot), bold)

    def band(self, calls: list[Call]) -> list[str]:
        if len(calls) < max(2, len(calls[0].members)):
            return []
        row = self.y(max(call.begun.row for call in calls))
        places = [self.x[call.rank] + SLOT * self.slots[id(call)] for call in calls]
        width = max(places) - min(places)
        return [f'<rect x="{min(places)}" y="{row + 14}" width="{width}" height="5" fill="{FILL}"/>']

    def arrow(self, calls: list[Call]) -> list[str]:
        send = next((call for call in calls if call.operation in SENDS), None)
        receive = next((call for call in calls if call is not send), None)
        if send is None or receive is None or receive.ended is None:
            return []
        x1, x2 = self.x[send.rank], self.x[receive.rank]
        y1, y2 = self.y(send.begun.row) + 4, self.y(receive.ended.row) + 4
        return [
            text(x1 + 10, y1 - 3, self.fit(label(send))),
            f'<line x1="{x1}" y1="{y1}" x2="{x2 - 7 if x1 < x2 else x2 + 7}" y2="{y2}" '
            f'stroke="{INK}" stroke-width="1.5" marker-end="url(#head)"/>',
        ]

    def alternative(self) -> str:
        """What the picture shows, in words."""
        told = [f"Ranks {listed(self.ranks)} as columns, time downwards"]
        for words, same in groupby(map(in_words, self.sets)):
            times = len(list(same))
            told.append(words if times == 1 else f"{times} times {words}")
        told += [f"rank {rank} {words}" for rank, words in self.replay.waits.items()]
        return "; ".join(told)


def rows_of(call: Call) -> set[int]:
    begin = set() if call.ended and call.name == "recv" else {call.begun.row}
    return begin | ({call.ended.row} if call.ended and call.name != "send" else set())


def has_bar(call: Call) -> bool:
    return not call.is_message or call.ended is None  # else the arrow says it


def changed(call: Call) -> list[str]:
    return [after for before, after in zip(call.before, call.after, strict=False) if after != before]


def is_short(value: str) -> bool:
    return value[:1] in tuple("[-0123456789") and len(value) <= LONGEST


def cut(words: str, longest: int) -> str:
    return words if len(words) <= longest else words[: longest - 1] + "…"


def label(call: Call) -> str:
    """Its name, its partner, and what it hands in: a few numbers, else the shape."""
    whom = "" if not call.is_message else f" {'to' if call.operation in SENDS else 'from'} {call.peer}"
    shape = call.shapes[0].partition(")")[0] + ")" if call.shapes else ""
    what = call.before[0] if call.before and is_short(call.before[0]) else shape
    return f"{call.name}{whom} {what}".rstrip()


def text(x: int, y: int, words: str, bold: bool = False) -> str:
    weight = ' font-weight="bold"' if bold else ""
    return f'<text x="{x}" y="{y}"{weight}>{escape(words)}</text>' if words else ""


def in_words(calls: list[Call]) -> str:
    call = calls[0]
    if call.is_message:
        return f"{call.name} between ranks {call.rank} and {call.peer}"
    missing = sorted(set(call.members) - {other.rank for other in calls})
    return f"{call.name} of {len(calls)} ranks" + (f" without rank {listed(missing)}" if missing else "")
