"""The program's front door. Answers `--version` before anything is imported (P10); everything else is `llmgw.cli`'s.

May not parse, decide or print anything else.
"""

import sys


def main() -> int:
    if sys.argv[1:] == ["--version"]:
        from llmgw import __version__

        try:
            print(f"llmgw {__version__}", flush=True)
        except OSError:
            pass  # a full disk, a reader that left: the door has the words for it
        else:
            return 0
    from llmgw.cli.door import run

    return run(sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
