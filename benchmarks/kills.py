"""Kill a run at random moments, go on with it, and compare what comes of it with an undisturbed run, byte for byte.

    python benchmarks/kills.py --out kills

One run after another is started, and any of its processes, the launcher included, is killed (SIGKILL) after a random
time; `naspipe resume` follows, and is killed in its turn, until the run has ended. Then every file that it has left is
compared with the undisturbed run's. The first difference ends the program with code 1. What has been done is kept in
the folder: the same command goes on. Linux only: it looks into /proc.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import os
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TWO_PROCESSES = ("executor.name=csp", "executor.stages=2", "executor.transport=distributed")
PATIENCE_SECONDS = 600.0
"""For processes to end once one of them has been killed, beside the time in which they may finish the run."""

OTHERWISE_EACH_TIME = ("config.yaml", "environment.json", "report.html", "search/study.journal", ".lock")
"""Files that hold times and paths."""


class DifferenceError(Exception):
    """A run that was killed has not ended as the undisturbed one did."""


@dataclass(frozen=True)
class Kill:
    """One kill.

    Attributes:
        number: Its place among all.
        run: The run's number.
        phase: What the run was at.
        process: What was killed.
        seconds: When, after the process was started.
        logged: Subnets that had been logged.
        lost: How many of them are trained again.
        code: Exit code of the command, negative for a signal.
    """

    number: int
    run: int
    phase: str
    process: str
    seconds: float
    logged: int
    lost: int
    code: int


class Campaign:
    """Kills in one folder; a second object goes on where the first has ended."""

    def __init__(self, config: Path, out: Path, overrides: Sequence[str], seed: int = 0) -> None:
        """Use a folder, which may be new."""
        self._config, self._out, self._overrides, self._seed = config.resolve(), out.resolve(), list(overrides), seed
        self._out.mkdir(parents=True, exist_ok=True)
        self._log = self._out / "kills.jsonl"
        self._scratch = self._out / "tmp"
        self._scratch.mkdir(exist_ok=True)
        lines = self._log.read_text().splitlines() if self._log.exists() else []
        self.kills = [Kill(**json.loads(line)) for line in lines]
        self.compared = 0
        self._span = 0.0
        self._expected: dict[str, str] = {}

    def do(self, count: int, tell: Callable[[Kill], None] = lambda kill: None) -> None:
        """Kill until there are so many kills, and end and compare the last run.

        Raises:
            DifferenceError: A run ends otherwise than the undisturbed one, or something is left.
        """
        self._undisturbed()
        number = self.kills[-1].run if self.kills else 0
        while True:
            path = self._out / f"run{number}"
            ended = False
            while not ended and len(self.kills) < count:
                ended = self._start_and_kill(path, number, tell)
            if not ended:
                self._finish(path)
            self._compare(path)
            self.compared += 1
            shutil.rmtree(path)
            if len(self.kills) >= count:
                return
            number += 1

    def _undisturbed(self) -> None:
        """Run once without a kill, or look up what came of it."""
        path, seconds = self._out / "undisturbed", self._out / "undisturbed.json"
        if not seconds.exists():
            shutil.rmtree(path, ignore_errors=True)
            begin = time.monotonic()
            self._wait(self._start(path))
            seconds.write_text(json.dumps(time.monotonic() - begin))
        self._span = json.loads(seconds.read_text())
        self._expected = digests(path)

    def _start(self, path: Path) -> subprocess.Popen[bytes]:
        """Start a run, or go on with one."""
        command = [sys.executable, "-m", "naspipe"]
        if (path / "config.yaml").exists():
            command += ["resume", str(path)]
        else:
            # It was killed before there was anything to go on with.
            shutil.rmtree(path, ignore_errors=True)
            sets = [part for override in self._overrides for part in ("--set", override)]
            command += ["run", str(self._config), "--out", str(path), *sets]
        log = (self._out / "output.txt").open("wb")
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "TMPDIR": str(self._scratch)}
        return subprocess.Popen(command, stdout=log, stderr=log, env=environment)

    def _start_and_kill(self, path: Path, run: int, tell: Callable[[Kill], None]) -> bool:
        """Start a run or go on with it, and kill one of its processes; tell whether it ended before."""
        chance = random.Random(f"{self._seed} {len(self.kills)} {run}")
        # Half of what a run takes: most are killed more than once before they end.
        moment = chance.uniform(0, self._span / 2)
        floor = _bytes_of(path, _checkpoint(path))
        begin = time.monotonic()
        process = self._start(path)
        while time.monotonic() - begin < moment:
            if process.poll() is not None:
                if process.returncode:
                    self._fail(f"a command that was not disturbed ended with code {process.returncode}")
                return True
            metrics = path / "train" / "metrics.jsonl"
            if metrics.exists() and metrics.stat().st_size < floor:
                self._fail("more was lost than what was trained after the last checkpoint")
            time.sleep(0.02)
        family = family_of(process.pid)
        # What only helps is killed less often: the run then goes on to its end.
        victim = chance.choice([pid for pid in sorted(family) for _ in range(1 if family[pid] == "helper" else 6)])
        phase = phase_of(path)
        _kill(victim)
        code = self._await_end(process, family)
        # With code 0 it was a worker, or what only helps: the others have done without it.
        logged = _lines(path)
        lost = logged - _checkpoint(path) if phase == "training" and code else 0
        if code == 0:
            self._finish(path)
        kill = Kill(len(self.kills), run, phase, family[victim], round(moment, 2), logged, lost, code)
        self.kills.append(kill)
        with self._log.open("a") as file:
            file.write(json.dumps(asdict(kill)) + "\n")
        tell(kill)
        return code == 0

    def _await_end(self, process: subprocess.Popen[bytes], family: dict[int, str]) -> int:
        """Wait until a command and all that it had started are gone."""
        try:
            code = process.wait(PATIENCE_SECONDS + 3 * self._span)
        except subprocess.TimeoutExpired:
            self._fail("the command did not end after one of its processes had been killed")
        if code < 0:
            # It was the launcher. What it has started may live on for a moment; resume has to see to that itself.
            return code
        end = time.monotonic() + PATIENCE_SECONDS
        while left := [pid for pid in family if Path(f"/proc/{pid}").exists()]:
            if time.monotonic() > end:
                self._fail(f"processes {left} were left")
            time.sleep(0.05)
        return code

    def _finish(self, path: Path) -> None:
        """Go on with a run to its end."""
        self._wait(self._start(path))

    def _wait(self, process: subprocess.Popen[bytes]) -> None:
        if process.wait():
            self._fail(f"a command that was not disturbed ended with code {process.returncode}")

    def _compare(self, path: Path) -> None:
        found = digests(path)
        different = [name for name in sorted({*self._expected, *found}) if self._expected.get(name) != found.get(name)]
        if different:
            self._fail(f"{path} differs from the undisturbed run in {', '.join(different)}")
        # Whatever processes live on for a moment after their launcher was killed have been waited for.
        # Torch makes one folder for compiled code that all processes share.
        if left := [path for path in self._scratch.iterdir() if not path.name.startswith("torchinductor_")]:
            self._fail(f"temporary files were left: {', '.join(map(str, left))}")
        if left := [pid for pid in _pids() if str(path) in _environment_or_command(pid)]:
            self._fail(f"processes {left} were left")

    def _fail(self, reason: str) -> None:
        output = (self._out / "output.txt").read_text(errors="replace")[-3000:]
        raise DifferenceError(f"{reason}. The last command printed:\n{output}")


def digests(path: Path) -> dict[str, str]:
    """Return a digest of each file of a run, but of those that are otherwise each time only that they are there."""
    found = {}
    for file in sorted(path.rglob("*")):
        name = file.relative_to(path).as_posix()
        if file.is_file():
            same = name not in OTHERWISE_EACH_TIME
            found[name] = hashlib.sha256(file.read_bytes()).hexdigest() if same else "there"
    return found


def phase_of(path: Path) -> str:
    """Return what a run is at, by its files."""
    marks = [
        ("best/metrics.json", "report"), ("best/architecture.json", "retraining"),
        ("train/supernet.safetensors", "search"), ("train/metrics.jsonl", "training"),
    ]  # fmt: skip
    return next((phase for mark, phase in marks if (path / mark).exists()), "start")


def family_of(pid: int) -> dict[int, str]:
    """Return a process and all that it has started, directly or not, and what each is."""
    parents = {}
    for other in _pids():
        try:
            stat = Path(f"/proc/{other}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue  # It has ended.
        if stat[0] != "Z":
            parents[other] = int(stat[1])
    family = {pid: "launcher"}
    grown = True
    while grown:
        grown = False
        for other, parent in parents.items():
            if parent in family and other not in family:
                family[other] = "helper" if "resource_tracker" in _command(other) else "process"
                grown = True
    return family


def _pids() -> Iterator[int]:
    return (int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit())


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""


def _environment_or_command(pid: int) -> str:
    try:
        return _command(pid) + Path(f"/proc/{pid}/environ").read_bytes().decode(errors="replace")
    except OSError:
        return ""


def _kill(pid: int) -> None:
    # It may just have ended by itself.
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, 9)


def _lines(path: Path) -> int:
    metrics = path / "train" / "metrics.jsonl"
    return metrics.read_bytes().count(b"\n") if metrics.exists() else 0


def _checkpoint(path: Path) -> int:
    """Return the subnet from which training would go on."""
    return max((int(m.parent.name) for m in (path / "train" / "checkpoints").glob("*/manifest.json")), default=0)


def _bytes_of(path: Path, lines: int) -> int:
    if not lines:
        return 0
    with (path / "train" / "metrics.jsonl").open("rb") as file:
        return sum(len(file.readline()) for _ in range(lines))


def main() -> None:
    """Kill, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder to work in; what it holds is gone on with")
    parser.add_argument("--config", type=Path, default=ROOT / "examples" / "digits.yaml")
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--set", action="append", default=[], dest="overrides", metavar="KEY=VALUE")
    chosen = parser.parse_args()
    campaign = Campaign(chosen.config, chosen.out, [*TWO_PROCESSES, *chosen.overrides], chosen.seed)
    print("kill  run  phase       process    after s  logged  lost  exit code")

    def tell(kill: Kill) -> None:
        print(
            f"{kill.number:4}  {kill.run:3}  {kill.phase:<10}  {kill.process:<8}  {kill.seconds:8.1f}  {kill.logged:6}"
            f"  {kill.lost:4}  {kill.code:9}",
            flush=True,
        )

    for kill in campaign.kills:
        tell(kill)
    try:
        campaign.do(chosen.kills, tell)
    except DifferenceError as error:
        sys.exit(f"FAILED: {error}")
    runs = len({kill.run for kill in campaign.kills})
    print(f"{len(campaign.kills)} kills in {runs} runs: every file of every run is equal to the undisturbed run's.")


if __name__ == "__main__":
    main()
