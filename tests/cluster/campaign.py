"""Interrupt trainings on a private Slurm at many random points, and count the outcomes (`make faults`).

python tests/cluster/campaign.py --n 50 --seed 0 --into docs/reliability.md
"""

from __future__ import annotations

import argparse
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path += [str(ROOT / "tests"), str(ROOT / "workflow")]

import trainings as faults  # noqa: E402
from private_slurm import private_slurm, why_not  # noqa: E402
from trainings import Fault, Trainings  # noqa: E402

#: Faults of one job, several in one start of Snakemake: each seed has one.
OF_A_JOB = (faults.kill, faults.cancel, faults.cut_checkpoint, faults.flip_bit, faults.shorten)


@dataclass(frozen=True)
class Kind:
    """A fault, the partition of the trainings, and whether it affects one job or all."""

    title: str
    fault: Fault
    partition: str = "main"
    alone: bool = True


KINDS = (
    *(Kind(fault.__doc__ or "", fault, alone=False) for fault in OF_A_JOB),
    Kind("Preempted, put back into the queue", faults.preempt, "scavenge"),
    Kind("Preempted, cancelled after half a minute", faults.preempt, "spot"),
    Kind("Preempted, cancelled at once", faults.preempt, "harsh"),
    *(
        Kind(fault.__doc__ or "", fault)
        for fault in (
            faults.silence,
            faults.restart_controller,
            faults.kill_node,
            faults.kill_snakemake,
            faults.fill_disk,
        )
    ),
)
#: Seeds that train side by side, one GPU each.
TOGETHER = 3
MARKS = ("<!-- campaign: begin -->", "<!-- campaign: end -->")


@dataclass
class Count:
    injected: int = 0
    recovered: int = 0
    identical: int = 0
    resumed: int = 0


def campaign(trainings: Trainings, n: int, chance: random.Random) -> dict[str, Count]:
    """Inject `n` faults, about the same number of each kind. Faults after the end of a run do not count.

    A start of Snakemake that has not ended after some minutes counts as not recovered.
    """
    counts = {kind.title: Count() for kind in KINDS}
    for _ in range(2 * n):  # a fault that always comes too late must not keep this going for ever
        left = n - sum(count.injected for count in counts.values())
        if left <= 0:
            break
        rarest = sorted(KINDS, key=lambda kind: (counts[kind.title].injected, chance.random()))
        # One that strikes all runs at once, or as many as there are runs of those that strike one.
        chosen = [rarest[0]] if rarest[0].alone else [kind for kind in rarest if not kind.alone][: min(TOGETHER, left)]
        for kind, seed, struck, ended in trial(trainings, chosen, chance):
            differing = [trainings.differing(wanted) for wanted in trainings.wanted] if ended else []
            if struck and any(differing):
                print(f"{kind.title}: {'; '.join(filter(None, differing))}\n{trainings.told()}", file=sys.stderr)
            if struck:
                count = counts[kind.title]
                count.injected += 1
                count.recovered += ended
                count.identical += ended and not any(differing)
                count.resumed += ended and trainings.interruptions(seed) > 0
        done = sum(count.injected for count in counts.values())
        print(f"{time.strftime('%H:%M:%S')} {done}/{n} {', '.join(kind.title for kind in chosen)}", flush=True)
    return counts


def trial(trainings: Trainings, chosen: Sequence[Kind], chance: random.Random) -> list[tuple[Kind, int, bool, bool]]:
    """Run Snakemake once. Return for each kind the seed, whether the fault came in time, and whether all runs ended."""
    trainings.clear()
    trainings.output.unlink(missing_ok=True)
    trainings.site(chosen[0].partition)
    points = {
        seed: (kind.fault, round(chance.uniform(0.05, 0.9) * trainings.steps)) for seed, kind in enumerate(chosen)
    }
    try:
        trainings.start(list(trainings.seeds))
        struck = trainings.strike(points, chance)
        try:
            ended = trainings.finish() == 0
        except subprocess.TimeoutExpired:
            ended = False
    finally:
        trainings.stop()
    if not ended:
        print(trainings.told(), file=sys.stderr)
    return [(kind, seed, struck[seed], ended) for seed, kind in enumerate(chosen)]


def table(counts: dict[str, Count]) -> str:
    lines = ["| fault | injected | recovered | identical | went on from a checkpoint |", "|---|---:|---:|---:|---:|"]
    everything = Count(*map(sum, zip(*(vars(count).values() for count in counts.values()), strict=True)))
    for title, count in [*counts.items(), ("**all**", everything)]:
        lines.append(f"| {title} | {' | '.join(str(value) for value in vars(count).values())} |")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--n", type=int, default=50, help="faults (default: 50)")
    parser.add_argument("--seed", type=int, default=0, help="of the random points (default: 0)")
    parser.add_argument("--into", type=Path, help="a file whose lines between the campaign's marks the table replaces")
    options = parser.parse_args()
    if reason := why_not():
        print(f"campaign: {reason}", file=sys.stderr)
        return 1
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="recaps-faults-") as folder, private_slurm() as slurm:
        trainings = Trainings(ROOT, Path(folder), slurm, seeds=TOGETHER)
        with faults.small_disk(trainings.results.parent, megabytes=48):
            counts = campaign(trainings, options.n, random.Random(options.seed))
    minutes = (time.monotonic() - began) / 60
    text = f"{table(counts)}\n\n`make faults N={options.n}`: {minutes:.0f} minutes, {date.today()}.\n"
    print(text)
    if options.into:
        page = options.into.read_text(encoding="utf-8")
        before, _, rest = page.partition(MARKS[0])
        _, _, after = rest.partition(MARKS[1])
        options.into.write_text(f"{before}{MARKS[0]}\n{text}{MARKS[1]}{after}", encoding="utf-8")
    return 0 if all(count.injected == count.identical for count in counts.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
