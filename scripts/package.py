"""Builds what people install: the wheel, one executable file, and a Debian package around it.

Answers for: build/dist/*. The file needs a Python on the box and nothing else: it carries every dependency for each
Python named here, pinned as in requirements.lock. It may not publish anything.

    python -m scripts.package wheel|binary|deb
"""

import gzip
import hashlib
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import venv
from pathlib import Path

from llmgw import __version__
from packaging import tags
from scripts.generated import ROOT

DIST = ROOT / "build" / "dist"
TOOLS = ROOT / "build" / "tools"
PEX = "pex==2.105.2"
#: Those that a box of today may have as python3.
PYTHONS = ("3.11", "3.12", "3.13", "3.14")
#: glibc 2.28 is older than any distribution that has the oldest of them; wheels for an older one run there too.
GLIBC = 28
DEB_MACHINES = {"x86_64": "amd64", "aarch64": "arm64"}
#: Where each file of the checkout goes in the package; `.gz` is packed on the way.
INSTALLED = {
    "completions/llmgw.bash": "usr/share/bash-completion/completions/llmgw",
    "completions/_llmgw": "usr/share/zsh/vendor-completions/_llmgw",
    "completions/llmgw.fish": "usr/share/fish/vendor_completions.d/llmgw.fish",
    "packaging/man/llmgw.1": "usr/share/man/man1/llmgw.1.gz",
    "packaging/man/llmgw-adopt.1": "usr/share/man/man1/llmgw-adopt.1.gz",
    "packaging/man/llmgw-catalog.5": "usr/share/man/man5/llmgw-catalog.5.gz",
    "CHANGELOG.md": "usr/share/doc/llmgw/CHANGELOG.md.gz",
    "LICENSE": "usr/share/doc/llmgw/copyright",
    "README.md": "usr/share/doc/llmgw/README.md",
    "docs/operations.md": "usr/share/doc/llmgw/operations.md",
    "docs/catalog.md": "usr/share/doc/llmgw/catalog.md",
    "catalog.example.yaml": "usr/share/doc/llmgw/examples/catalog.yaml",
    "catalog.schema.json": "usr/share/doc/llmgw/examples/catalog.schema.json",
}
UNITS = "usr/lib/systemd/system"
#: Beside each unit, as UNIT.service.d/pex.conf: where the program unpacks itself.
DROP_INS = {"control": "pex.conf", "agent": "pex.conf", "gateway": "pex-gateway.conf"}
#: Of every file in what is built, so that the same input gives the same bytes; that of hatchling.
EPOCH = "1580601600"


def run(*command: str | Path, **env: str) -> None:
    epoch = {"SOURCE_DATE_EPOCH": os.environ.get("SOURCE_DATE_EPOCH", EPOCH)}
    done = subprocess.run(
        [str(c) for c in command], check=False, cwd=ROOT, env=os.environ | epoch | env, capture_output=True, text=True
    )  # fmt: skip
    if done.returncode:  # what it says on the way is for whoever looks for the reason
        print(done.stdout, done.stderr, sep="", file=sys.stderr)
        sys.exit(f"{Path(str(command[0])).name} failed with exit code {done.returncode}")


def wheel() -> Path:
    DIST.mkdir(parents=True, exist_ok=True)
    run(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", DIST)
    return DIST / f"llmgw-{__version__}-py3-none-any.whl"


def pins() -> Path:
    """The versions that are tested, without hashes: the resolver takes them as constraints."""
    lines = (ROOT / "requirements.lock").read_text().splitlines()
    found = [line.split(" \\")[0] for line in lines if re.match(r"^[A-Za-z0-9][^ ]*==", line)]
    path = ROOT / "build" / "constraints.txt"
    path.write_text("\n".join(found) + "\n")
    return path


def targets(machine: str) -> list[str | Path]:
    """Options that name each of PYTHONS with every wheel that it takes.

    A platform in short form takes those of its own tag alone: of a package that has wheels for an older glibc only,
    all of them were then built here, for the Python of here.
    """
    platforms = [f"manylinux_2_{n}_{machine}" for n in range(GLIBC, 16, -1)]
    platforms += [f"manylinux2014_{machine}", f"linux_{machine}"]
    options: list[str | Path] = []
    for python in PYTHONS:
        version = tuple(map(int, python.split(".")))
        about = {
            "implementation_name": "cpython", "implementation_version": f"{python}.0", "os_name": "posix",
            "platform_machine": machine, "platform_python_implementation": "CPython", "platform_release": "",
            "platform_system": "Linux", "platform_version": "", "python_full_version": f"{python}.0",
            "python_version": python, "sys_platform": "linux",
        }  # fmt: skip
        named = f"cp{python.replace('.', '')}"
        takes = [
            *tags.cpython_tags(version, [named], platforms),
            *tags.compatible_tags(version, named, platforms),
        ]
        path = ROOT / "build" / f"target-{python}.json"
        path.write_text(
            json.dumps({"marker_environment": about, "compatible_tags": list(map(str, takes))})
        )
        options += ["--complete-platform", path]
    return options


def binary(machine: str = platform.machine()) -> Path:
    """One file for every Python of PYTHONS; it unpacks itself once, below PEX_ROOT."""
    built = wheel()
    if not (TOOLS / "bin" / "pex").exists():
        venv.create(TOOLS, with_pip=True)
        run(TOOLS / "bin" / "pip", "install", "--quiet", PEX)
    out = DIST / "llmgw"
    run(
        TOOLS / "bin" / "pex", built, "--constraints", pins(), "--console-script", "llmgw", "--venv", "--sh-boot",
        "--python-shebang", "/usr/bin/env python3", "--no-build", *targets(machine), "--output-file", out,
    )  # fmt: skip
    return out


def deb() -> Path:
    machine = platform.machine()
    program = binary(machine)
    tree = ROOT / "build" / "deb"
    shutil.rmtree(tree, ignore_errors=True)
    put(program, tree / "usr/bin/llmgw", 0o755)
    for source, target in INSTALLED.items():
        put(ROOT / source, tree / target, 0o644)
    for unit in sorted((ROOT / "packaging/systemd").iterdir()):
        put(unit, tree / UNITS / unit.name, 0o644)
    for part, drop_in in DROP_INS.items():
        folder = tree / UNITS / f"llmgw-{part}.service.d"
        put(ROOT / "packaging/deb" / drop_in, folder / "pex.conf", 0o644)
    control = (ROOT / "packaging/deb/control").read_text()
    about = tree / "DEBIAN"
    about.mkdir()
    packed = sorted(f for f in tree.rglob("*") if f.is_file())
    size = sum(f.stat().st_size for f in packed) // 1024
    (about / "md5sums").write_text("".join(map(md5sum, packed)))
    arch = DEB_MACHINES[machine]
    (about / "control").write_text(control.format(version=__version__, arch=arch, size=size))
    for name in ("postinst", "prerm", "postrm"):
        put(ROOT / "packaging/deb" / name, about / name, 0o755)
    out = DIST / f"llmgw_{__version__}_{arch}.deb"
    run("dpkg-deb", "--root-owner-group", "-Zxz", "--build", tree, out)
    return out


def md5sum(file: Path) -> str:
    """What `dpkg --verify` compares (deb-md5sums(5))."""
    digest = hashlib.md5(file.read_bytes(), usedforsecurity=False).hexdigest()
    return f"{digest}  {file.relative_to(ROOT / 'build/deb')}\n"


def put(source: Path, target: Path, mode: int) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    data = source.read_bytes()
    target.write_bytes(gzip.compress(data, mtime=0) if target.suffix == ".gz" else data)
    target.chmod(mode)


if __name__ == "__main__":
    made = {"wheel": wheel, "binary": binary, "deb": deb}[sys.argv[1]]()
    print(made.relative_to(ROOT))
