"""What a reader starts an exercise from: its solution without what stands between marks."""

BEGIN = "# solution: begin"
FOUND = "# solution: found"
END = "# solution: end"
TODO = "raise NotImplementedError  # your turn: replace this line"


def stub_of(solution: str) -> str:
    """``solution`` with each marked block replaced by ``raise NotImplementedError``.

    A block with a line ``# solution: found`` becomes the comments below that line, as code.
    """
    lines: list[str] = []
    begin = 0  # of the block that we are in: the number of its first line in the stub
    place = "outside"
    for line in solution.splitlines():
        mark = line.strip()
        if mark == BEGIN:
            place = "inside"
            begin = len(lines)
            lines.append(line.replace(BEGIN, TODO))
        elif mark == FOUND:
            place = "found"
            del lines[begin:]
        elif mark == END:
            place = "outside"
        elif place == "outside":
            lines.append(line)
        elif place == "found":
            lines.append(line.replace("# ", "", 1))
    return "\n".join(lines) + "\n"
