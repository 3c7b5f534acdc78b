"""The README's commands on a clean Debian, as a stranger types them. Run by hand, before a release.

    sudo -E python3 -m tests.fresh bookworm trixie sid [--user root] [--solved all] [--wrong] [--keep]

debootstrap makes each system in a temporary folder, with ``PACKAGES`` and nothing else; 7 GB in the end.
There the last commit of this checkout runs in namespaces of its own: what it starts and mounts ends with it.
"""

import argparse
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path

COURSE = Path(__file__).resolve().parents[1]
PACKAGES = "--include=ca-certificates,git,make,python3,python3-venv"
BUNDLE = "/srv/rank-by-rank.bundle"  # what is cloned there
LESSON_00 = ".venv/bin/papermill --no-progress-bar notebooks/00_start_here.ipynb /tmp/00.ipynb"
ADDRESS = re.compile(r"http://(?:localhost|127\.0\.0\.1):\d+/\S*token=\w+")
DIRECTLY = urllib.request.build_opener(urllib.request.ProxyHandler({}))
CLOSING = re.compile(r"\d+ (?:passed|failed|skipped|errors?)\b.* in [\d.]+s.*")  # pytest's last line
TOLD = re.compile(r"^(?:FAILED|ERROR|SKIPPED) .*", re.MULTILINE)
HOST_VARIABLES = "(?i).*_proxy|pip_(cert|index_url|trusted_host)|ssl_cert_file|requests_ca_bundle"
SOLVED = {"none": slice(0), "some": slice(None, None, 6), "all": slice(None)}  # of the exercises in order
WRONG = ("rank, items", "rank + 1, items + 1")  # in the answer to exercise 00
MARKS = re.compile(r"^ *# solution: \w+\n", re.MULTILINE)  # no reader has them
NOTE = "#a note of my own,  keep it\n"
NAMESPACES = ("setpriv", "--pdeathsig", "KILL", "unshare", "--mount", "--pid", "--fork", "--kill-child")

# Process 1 of a machine; it reaps orphans. Not a chroot: user namespaces are refused there.
ENTER = """set -e
mount --bind "$1" "$1"; cd "$1"
mount -t proc proc proc
mount -t sysfs -o ro sysfs sys
mount --rbind /dev dev; mount -t tmpfs -o mode=1777 tmpfs dev/shm
/sbin/pivot_root . mnt; umount -l /mnt; cd "$3"
setpriv --reuid "$2" --regid "$2" --clear-groups bash -l -c "$4" || exit $?
"""


@contextmanager
def contained(command: list[str], log: Path, variables: dict[str, str]) -> Iterator[subprocess.Popen]:
    """Start ``command`` in namespaces of its own. At the end, however it comes, nothing of it is left."""
    with log.open("wb") as out:
        streams = {"stdin": subprocess.DEVNULL, "stdout": out, "stderr": out}
        process = subprocess.Popen([*NAMESPACES, *command], env=variables, start_new_session=True, **streams)
    try:
        yield process
    finally:
        while process.poll() is None:
            with suppress(FileNotFoundError, ProcessLookupError):  # it ended by itself
                for child in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split():
                    os.kill(int(child), signal.SIGKILL)  # process 1: the kernel ends the others with it
            time.sleep(0.1)


def readme_commands(readme: str) -> list[str]:
    """The course arrives; then the commands of the block with ``make lab``, and those that it may lack."""
    arrival = ["git clone ADDRESS rank-by-rank", "cd rank-by-rank"]
    blocks = re.findall(r"^```\w*\n(.*?)^```", readme, re.MULTILINE | re.DOTALL)
    block = next(block for block in blocks if re.search(r"^make lab\b", block, re.MULTILINE))
    commands = [line.partition("#")[0].strip() for line in block.splitlines()]
    return [
        *arrival,
        *filter(None, commands),
        *(more for more in ("make fit", "make test") if more not in commands),
    ]


def copy_settings(root: Path, variables: dict[str, str]) -> None:
    """Name resolution, certificates and pip's settings of this host, but none of its folders of packages."""
    files = ["/etc/resolv.conf", "/etc/hosts", "/etc/pip.conf", "/etc/ssl/certs/ca-certificates.crt"]
    files += [value for value in variables.values() if value.startswith("/")]
    places = {Path(file): root / file[1:] for file in files}
    places[Path.home() / ".config/pip/pip.conf"] = root / "etc/xdg/pip/pip.conf"
    for file, place in places.items():
        if file.exists():
            lines = file.read_text().splitlines(keepends=True)
            place.parent.mkdir(parents=True, exist_ok=True)
            place.unlink(missing_ok=True)  # a link would lead out of the root
            place.write_text("".join(line for line in lines if not re.search("file:|find-links", line)))


def solve(checkout: Path, which: str, wrong: bool) -> dict[Path, str]:
    """Answer exercises as a reader does, in the notebook and its file. Returns what each of them then has."""
    written = {}
    for folder in sorted((checkout / "labs").glob("lesson_[0-9]*"))[SOLVED[which]]:
        answer = MARKS.sub("", (folder / "solution.py").read_text()) + NOTE
        if wrong and folder.name == "lesson_00":
            answer = answer.replace(*WRONG)
        (notebook,) = checkout.glob(f"notebooks/{folder.name[-2:]}_*.ipynb")
        content = json.loads(notebook.read_text())
        magic = f"%%writefile ../labs/{folder.name}/exercise.py\n"
        (cell,) = (cell for cell in content["cells"] if cell["source"][:1] == [magic])
        cell["source"] = (magic + answer.rstrip("\n")).splitlines(keepends=True)
        written[folder / "exercise.py"] = answer
        written[notebook] = json.dumps(content, indent=1, ensure_ascii=False) + "\n"
    for path, text in written.items():
        path.write_text(text)
    return written


class Machine:
    """A clean Debian with one user, and what runs there."""

    def __init__(self, system: str, user: str, folder: Path) -> None:
        self.system, self.user, self.root = system, user, folder / system
        self.name = f"{system}, {user}"
        self.number = "0" if user == "root" else "1001"
        self.at = self.home = "/root" if user == "root" else f"/home/{user}"  # at: where commands start
        self.host = {key: value for key, value in os.environ.items() if re.fullmatch(HOST_VARIABLES, key)}
        self.failed = False

    def log(self, name: str) -> Path:
        return self.root.with_name(f"{self.system}-{name.replace(' ', '-')[:20]}.log")

    def tell(self, name: str, began: float, result: str, said: str = "") -> None:
        """A row of the table; and what pytest failed or skipped, or the last lines of another command."""
        print(f"| {self.name} | {name} | {(time.monotonic() - began) / 60:.1f} | {result} |", flush=True)
        failed = result.startswith("FAILED")
        why = TOLD.findall(said) or (said.splitlines()[-15:] if failed else [])
        if why:
            print(f"{self.name}, {name}:", *why, sep="\n    ", file=sys.stderr, flush=True)
        self.failed |= failed

    def start(self, name: str, command: str) -> AbstractContextManager[subprocess.Popen]:
        """Start a command as the user, in an environment as after a login."""
        own = {"HOME": self.home, "USER": self.user, "LOGNAME": self.user, "LANG": "C.UTF-8", "TERM": "xterm"}
        enter = ["bash", "-c", ENTER, "enter", str(self.root), self.number, self.at, command]
        return contained(enter, self.log(name), {"PATH": os.defpath, **self.host, **own})

    def run(self, name: str, running: AbstractContextManager[subprocess.Popen]) -> bool:
        began = time.monotonic()
        with running as process:
            code = process.wait()
        said = self.log(name).read_text(errors="replace")
        closing = CLOSING.findall(said) or [f"exit {code}"]
        self.tell(name, began, f"{'FAILED' if code else 'passed'}: {closing[-1].strip(' =')}", said)
        return code == 0

    def build(self, mirror: list[str]) -> bool:
        """debootstrap, the host's settings, the user, and the course as a file to clone."""
        make = ["debootstrap", "--variant=minbase", PACKAGES, self.system, str(self.root), *mirror]
        if not self.run("debootstrap", contained(make, self.log("debootstrap"), dict(os.environ))):
            return False
        copy_settings(self.root, self.host)
        git = ["git", "-c", "safe.directory=*", "-C", str(COURSE), "bundle", "create", "-q"]
        subprocess.run([*git, f"{self.root}{BUNDLE}", "HEAD"], check=True)
        there = ["chroot", str(self.root), "sh", "-c", "useradd -m -u 1001 reader && python3 --version"]
        self.name = f"{self.system}, {subprocess.check_output(there, text=True).strip()}, {self.user}"
        return True

    def lab(self) -> bool:
        """The server of ``make lab`` answers; meanwhile lesson 00 runs in the kernel of its environment."""
        began = time.monotonic()
        answers = False
        with self.start("make lab", "make lab") as server:
            while server.poll() is None and not answers:
                time.sleep(1)
                if address := ADDRESS.search(self.log("make lab").read_text(errors="replace")):
                    with suppress(OSError):  # it does not listen yet
                        answers = DIRECTLY.open(address.group(), timeout=10).status == 200
            said = self.log("make lab").read_text(errors="replace")
            self.tell("make lab", began, "passed: it answers" if answers else "FAILED: it ended", said)
            if answers:
                self.run("lesson 00", self.start("lesson 00", LESSON_00))
        return answers

    def visit(self, which: str, wrong: bool) -> None:
        """The README's commands. Exercises are solved when the lab has run, and must be there at the end."""
        for command in readme_commands((COURSE / "README.md").read_text()):
            checkout = self.root / self.at[1:]
            if command.startswith("cd "):
                self.at = f"{self.at}/{command[3:]}"
            elif command == "make lab":
                if not self.lab():
                    return
                answers = solve(checkout, which, wrong)
            else:
                self.run(command, self.start(command, command.replace("ADDRESS", BUNDLE)))
        lost = [path.name for path, text in answers.items() if path.read_text() != text]
        kept = f"FAILED: changed {', '.join(lost)}" if lost else "passed: they are still there"
        self.tell(f"answers: {which}", time.monotonic(), kept)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="tests.fresh")
    parser.add_argument("systems", nargs="+", choices=("bookworm", "trixie", "sid"), help="of Debian")
    parser.add_argument("--user", choices=("reader", "root"), default="reader", help="who types")
    parser.add_argument("--solved", choices=SOLVED, default="none", help="which exercises are solved")
    parser.add_argument("--wrong", action="store_true", help="the answer to exercise 00 is wrong")
    parser.add_argument("--keep", action="store_true", help="leave the systems where they are")
    parser.add_argument("--mirror", nargs=1, default=[], help="where debootstrap finds Debian")
    options = parser.parse_args(arguments)
    if options.wrong and options.solved == "none":
        parser.error("--wrong needs --solved")
    if os.geteuid() != 0 or not shutil.which("debootstrap"):
        sys.exit("a Debian is made as root, with debootstrap installed: sudo -E python3 -m tests.fresh")
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: sys.exit("interrupted"))
    folder = Path(tempfile.mkdtemp(prefix="rank-by-rank-fresh-"))
    print("logs:", folder, file=sys.stderr)
    print("| Machine | Command | Minutes | Result |\n|---|---|---|---|")
    machines = [Machine(system, options.user, folder) for system in options.systems]
    for machine in machines:
        try:
            if machine.build(options.mirror):
                machine.visit(options.solved, options.wrong)
        finally:
            if not options.keep:
                shutil.rmtree(machine.root, ignore_errors=True)
    return int(any(machine.failed for machine in machines))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
