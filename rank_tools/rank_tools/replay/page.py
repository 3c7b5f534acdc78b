"""The page: the template with what the ranks did in it. It asks for no network."""

import json
from collections import Counter
from html import escape
from pathlib import Path

from .events import SENDS, Call, Event, Replay, slots_of

TEMPLATE = Path(__file__).with_name("page.html")
LONGEST_FILE = 5000  # lines that are shown of a file


def page(replay: Replay, command: str, state: str, with_seconds: bool = True) -> str:
    """The page as text of HTML. ``state`` says how the command ended."""
    data = json.dumps(content(replay, command, state, with_seconds), separators=(",", ":"), sort_keys=True)
    safe = data.replace("<", "\\u003c")  # no end of the script inside of it
    template = TEMPLATE.read_text(encoding="utf-8")
    return template.replace("TITLE", escape(command), 1).replace("DATA", safe, 1)


def content(replay: Replay, command: str, state: str, with_seconds: bool) -> dict:
    numbers = {id(call.begun): number for number, call in enumerate(replay.calls)}
    for number, call in enumerate(replay.calls):
        for event in (call.waited, call.ended):
            if event is not None:
                numbers[id(event)] = number
    slots = slots_of(replay.calls)
    lanes = [
        {
            "rank": lane.rank,
            "thread": lane.thread,
            "events": [event_of(event, numbers) for event in lane.events],
        }
        for lane in replay.lanes
    ]
    made = {
        "command": command,
        "state": state,
        "notes": replay.notes,
        "files": [{"name": name, "lines": lines_of(path)} for path, name in names_of(replay.files).items()],
        "lanes": lanes,
        "calls": [call_of(call, slots) for call in replay.calls],
        "sets": [[numbers[id(call.begun)] for call in calls] for calls in replay.together],
    }
    if with_seconds:
        events = [event for lane in replay.lanes for event in lane.events]
        first = min(event.seconds for event in events)
        made["seconds"] = [
            [round(event.seconds - first, 4) for event in lane.events] for lane in replay.lanes
        ]
    return made


def event_of(event: Event, numbers: dict[int, int]) -> list:
    if event.kind in ("call", "wait", "end"):
        return [event.row, event.kind[0], numbers[id(event)]]
    return [event.row, event.kind[0], *event.data[:5]]


def call_of(call: Call, slots: dict[int, int]) -> dict:
    return {
        "rank": call.rank,
        "lane": call.begun.lane,
        "slot": slots[id(call)],
        "name": call.name,
        "group": call.group,
        "members": call.members,
        "peer": call.peer,
        "sends": call.operation in SENDS,
        "message": call.is_message,
        "bytes": call.bytes,
        "shapes": call.shapes,
        "before": call.before,
        "after": call.after,
        "begin": call.begun.row,
        "end": None if call.ended is None else call.ended.row,
    }


def names_of(paths: list[str]) -> dict[str, str]:
    """{path: what the page calls it}: its name, with its folder where two have the same."""
    counts = Counter(Path(path).name for path in paths)
    return {
        path: Path(path).name if counts[Path(path).name] == 1 else "/".join(Path(path).parts[-2:])
        for path in paths
    }


def lines_of(path: str) -> list[str]:
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace").splitlines()[:LONGEST_FILE]
    except OSError:
        return []
