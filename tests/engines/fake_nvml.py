"""Builds the fake libnvidia-ml.so.1 of fake_nvml.c: made-up GPUs behind the real binding.

Answers for: a folder to put on LD_LIBRARY_PATH of a child (it is read when Python starts). What the
GPUs are is the child's environment: FAKE_NVML_GPUS=4, or FAKE_NVML_JSON=FILE, read again when it
changes; its keys are at the head of fake_nvml.c. It may not be loaded into the tests' own process.
"""

import shutil
import subprocess
from pathlib import Path

SOURCE = Path(__file__).with_name("fake_nvml.c")
SONAME = "libnvidia-ml.so.1"


def why_not() -> str | None:
    return None if shutil.which("cc") else "no C compiler (cc) here to build the fake NVML with"


def build(folder: Path) -> Path | None:
    """The folder that now holds the library, or None where `why_not()` has the reason."""
    if why_not():
        return None
    shared = ["-O1", "-shared", "-fPIC", f"-Wl,-soname,{SONAME}"]
    subprocess.run(["cc", *shared, "-o", str(folder / SONAME), str(SOURCE)], check=True)
    return folder
