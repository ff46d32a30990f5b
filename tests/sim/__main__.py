"""Histories and scripts from a command line: `python -m tests.sim --help`."""

from __future__ import annotations

import argparse
import sys
import time
from contextlib import suppress
from pathlib import Path

from tests.sim.commands import Commands
from tests.sim.mutants import MUTANTS
from tests.sim.run import Failure, Total, run_seed
from tests.sim.script import rewrite
from tests.sim.shrink import script
from tests.sim.simulation import Core


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.sim")
    parser.add_argument("--seed", type=int, help="replay one history")
    parser.add_argument("--shrink", type=int, metavar="SEED", help="a failing one as a script")
    parser.add_argument("--mutant", default="", help="of this core (tests/sim/mutants.py)")
    parser.add_argument("--words", action="store_true", help="the words of scripts")
    parser.add_argument("-v", "--verbose", action="store_true", help="print its whole trace")
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--seeds", type=int, default=100, help="how many, from --first on")
    parser.add_argument("--soak", type=float, metavar="MINUTES", help="as many as go into the time")
    parser.add_argument("--all", action="store_true", help="go on after a failure, a line each")
    parser.add_argument("--rewrite", nargs="*", type=Path, metavar="FILE", help="traces of scripts")
    args = parser.parse_args()
    if args.rewrite is not None:
        for path in rewrite(args.rewrite):
            say(f"rewritten: {path}")
        return 0
    if args.words:
        say("\n\n".join(Commands().manual().values()))
        return 0
    core = MUTANTS[args.mutant].core if args.mutant else None
    if args.shrink is not None:
        return smaller(args.shrink, core)
    return many(args) if args.seed is None else one(args.seed, core, verbose=args.verbose)


def say(words: object) -> None:
    sys.stdout.write(f"{words}\n")
    sys.stdout.flush()


def smaller(seed: int, core: Core | None) -> int:
    try:
        run_seed(seed, core)
    except Failure as e:
        say(script(e, core))
        return 1
    say(f"seed {seed} does not fail")
    return 0


def one(seed: int, core: Core | None, *, verbose: bool) -> int:
    try:
        sim = run_seed(seed, core)
    except Failure as e:
        say(e)
        return 1
    if verbose:
        say(sim.story())
    say(f"seed {seed}: {sim.headline()}")
    return 0


def many(args: argparse.Namespace) -> int:
    total, failed, seed = Total(), 0, args.first
    end = time.monotonic() + args.soak * 60 if args.soak else None
    with suppress(KeyboardInterrupt):
        while (time.monotonic() < end) if end else (seed < args.first + args.seeds):
            try:
                total.add(run_seed(seed))
            except Failure as e:
                failed += 1
                total.needless += e.needless
                say(f"seed {seed}: {e.said}" if args.all else e)
                if not args.all:
                    return 1
            seed += 1
    say(f"seeds {args.first}-{seed - 1}: {failed} failed; {total}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
