#!/usr/bin/env python3
"""Puts NVRTC 13.0 and the CUDA headers into .kvloom/toolchain, from NVIDIA's wheels on PyPI.

13.0 is what the 580 driver loads: PTX of a newer NVRTC would be refused by it. Only the files that kvloom uses are unpacked. The
stamp makes a second run return at once; a lock lets two runs meet; the finished folder appears by rename.
"""

import fcntl
import hashlib
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile

REQUIREMENTS = """\
nvidia-cuda-nvrtc==13.0.88 \
 --hash=sha256:ad9b6d2ead2435f11cbb6868809d2adeeee302e9bb94bcf0539c7a40d80e8575 \
 --hash=sha256:d27f20a0ca67a4bb34268a5e951033496c5b74870b868bacd046b1b8e0c3267b
nvidia-cuda-runtime==13.0.96 \
 --hash=sha256:7f82250d7782aa23b6cfe765ecc7db554bd3c2870c43f3d1821f1d18aebf0548 \
 --hash=sha256:ef9bcbe90493a2b9d810e43d249adb3d02e98dd30200d86607d8d02687c43f55
"""
WANTED = re.compile(r"nvidia/cu13/(include/.*|lib/libnvrtc(-builtins)?\.so\..*)|.*/licenses/.*")
STAMP = hashlib.sha256((REQUIREMENTS + WANTED.pattern).encode()).hexdigest() + "\n"

root = pathlib.Path(__file__).resolve().parent.parent / ".kvloom"
target = root / "toolchain"
stamp = target / ".stamp"


def done():
    return stamp.is_file() and stamp.read_text() == STAMP


def download(folder):
    requirements = folder / "requirements.txt"
    requirements.write_text(REQUIREMENTS)
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "download", "--quiet", "--no-deps",
           "--only-binary=:all:", "--require-hashes", "--dest", str(folder), "--requirement", str(requirements)]
    if subprocess.run(pip).returncode != 0:
        sys.exit("toolchain: pip could not download NVIDIA's wheels (message above). They exist for Linux on x86-64 and arm64, "
                 "and need PyPI or a mirror of it (PIP_INDEX_URL). Where CUDA 13.0 is installed already, set "
                 "KVLOOM_NVRTC=/usr/local/cuda instead.")
    return sorted(folder.glob("*.whl"))


def install(wheels, folder):
    for wheel in wheels:
        with zipfile.ZipFile(wheel) as z:
            for name in z.namelist():
                if WANTED.fullmatch(name):
                    z.extract(name, folder)
    (folder / ".stamp").write_text(STAMP)
    old = pathlib.Path(tempfile.mkdtemp(dir=root, prefix="old-"))
    if target.exists():
        target.rename(old / "toolchain")
    folder.rename(target)
    shutil.rmtree(old)


def main():
    root.mkdir(exist_ok=True)
    with open(root / "toolchain.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if done():
            stamp.touch()
            return
        for left in [*root.glob("new-*"), *root.glob("old-*")]:  # of a run that was killed; none is alive under the lock
            shutil.rmtree(left)
        print("toolchain: downloading NVRTC 13.0.88 and the CUDA 13.0.96 headers from PyPI", file=sys.stderr)
        with tempfile.TemporaryDirectory(dir=root, prefix="new-") as work:
            work = pathlib.Path(work)
            wheels = download(work)
            unpacked = work / "toolchain"
            unpacked.mkdir()
            install(wheels, unpacked)
        os.sync()


if __name__ == "__main__":
    main()
