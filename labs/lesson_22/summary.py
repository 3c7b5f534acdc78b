"""The table of lesson 22 from what its ranks recorded: one line for each strategy, in multiples of S."""

from collections.abc import Callable
from typing import Any

from lesson_22.memory import BUFFERS

SHORT = {"all_reduce": "AR", "all_gather": "AG", "reduce_scatter": "RS", "all_to_all": "A2A", "send": "sends"}
EXPERTS = ("single, experts", "EP", "EP, checkpointing", "FSDP x EP")  # another model, below the line
Rows = list[dict[str, Any]]  # what each rank recorded of a strategy
Line = dict[str, Any]  # {column: number}, and its "rows"


def most(rows: Rows, value: Callable[[dict], float]) -> float:
    """Where ranks differ, the largest, in multiples of S."""
    return max(value(row) for row in rows) / rows[0]["size"]


def busiest(line: Line) -> dict[str, Any]:
    """The rank that has to send the most."""
    return max(line["rows"], key=lambda row: row["required"])


def fullest(line: Line) -> dict[str, Any]:
    """The rank that holds the most at its peak."""
    return max(line["rows"], key=lambda row: sum(row["at peak"].values()))


def sent_along(row: dict[str, Any]) -> dict[str, float]:
    """{dimension: bytes that this rank has to send in a step}."""
    kinds = row["traffic"].items()
    return {dimension: sum(one["by_rule"] for one in of.values()) for dimension, of in kinds}


def line_of(rows: Rows) -> Line:
    line: Line = {"rows": rows, "required": most(rows, lambda row: row["required"])}
    line["on the wire"] = most(rows, lambda row: row["wire"] or 0)
    for kind in ("parameters", "gradients", "optimizer state"):
        line[kind] = max(row["keeps"][kind] for row in rows) / rows[0]["size"]
    line["activations"] = most(rows, lambda row: row["activations"])
    line["peak"] = most(rows, lambda row: sum(row["at peak"].values()))
    line["of which copies"] = fullest(line)["at peak"][BUFFERS] / rows[0]["size"]
    line["pipeline bubble"] = rows[0]["bubble"]
    return line


def table_of(*recorded: Rows) -> dict[str, Line]:
    """{strategy: its line}, from the ranks of each run; those with experts last, all others as they came."""
    table = {}
    for everyone in recorded:
        for name in everyone[0]:
            table[name] = line_of([one[name] for one in everyone])
    return {name: table[name] for name in sorted(table, key=EXPERTS.__contains__)}


def calls(row: dict[str, Any]) -> str:
    """Such as "tp 4: 21 AR". What is received was sent by somebody, and is left out."""
    texts = []
    for dimension, size in row["mesh"].items():
        kinds = row["traffic"].get(dimension, {})
        counts = [f"{kinds[op]['calls']} {short}" for op, short in SHORT.items() if op in kinds]
        if counts:
            texts.append(f"{dimension} {size}: {' + '.join(counts)}")
    return ", ".join(texts) or "–"


def in_markdown(table: dict[str, Line], *names: str) -> str:
    """The rows of these ``names``, or all of them."""
    columns = [column for column in table["single"] if column != "rows"]
    lines = [f"| strategy | calls of a step | {' | '.join(columns)} |", "|---" * (2 + len(columns)) + "|"]
    for name in names or table:
        line = table[name]
        numbers = " | ".join("–" if line[column] is None else f"{line[column]:.2f}" for column in columns)
        label = f"*with experts:* {name.removesuffix(', experts')}" if name in EXPERTS else name
        lines.append(f"| {label} | {calls(busiest(line))} | {numbers} |")
    return "\n".join(lines)


def close(a: float, b: float, slack: float = 0.02) -> bool:
    return abs(a / b - 1) < slack


def check(table: dict[str, Line], n: int) -> None:
    """What lesson 22 says of the table; calls, bytes and storage equal their formulas already."""
    required = {name: line["required"] for name, line in table.items()}
    left_over = {name: line["activations"] for name, line in table.items()}
    assert max(row["difference"] for line in table.values() for row in line["rows"]) < 1e-12
    assert close(required["ZeRO-1"], required["DDP"]) and close(required["FSDP"] / required["DDP"], 1.5)
    assert left_over["FSDP, checkpointing"] < left_over["FSDP"] / 4
    assert close(required["FSDP, checkpointing"], required["FSDP"])
    assert (round(left_over["TP"], 1), round(left_over["single"], 1)) == (2.6, 6.0)
    assert table["TP + SP"]["peak"] < table["TP"]["peak"] and close(required["TP + SP"], required["TP"])
    assert required["PP, 1F1B"] == min(value for value in required.values() if value)
    assert left_over["CP, ring"] < left_over["single"] / 3
    row = table["FSDP x TP"]["rows"][0]
    sent = {along: size / row["size"] for along, size in sent_along(row).items()}
    assert close(sent["dp"], required["FSDP"] / (n - 1), 0.05)  # of dp 2, and of tp 2
    assert close(sent["tp"], required["TP"] / (n - 1), 0.05)
    part, layers, width, tokens = (n - 1) / n, 4, 64, 8 * 32
    blocks, activations = 12 * width**2 * layers * 8, tokens * width * 8  # bytes, in float64
    formulas = {"DDP": 2 * part * blocks, "FSDP": 3 * part * blocks, "PP, 1F1B": 2 * activations}
    formulas["TP"] = 8 * part * layers * activations
    for name, formula in formulas.items():  # embeddings, head and loss are what is missing
        assert close(formula / row["size"], required[name], 0.15), (name, formula)
