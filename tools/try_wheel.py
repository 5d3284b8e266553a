"""Installs the built wheel into an empty virtual environment and uses it there, as a newcomer would."""

import subprocess
import sys
import tempfile
import venv
from pathlib import Path

(wheel,) = Path(sys.argv[1]).glob("*.whl")
with tempfile.TemporaryDirectory() as folder:
    venv.create(folder, with_pip=True)
    python = Path(folder) / "bin" / "python"
    subprocess.run([python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", wheel], check=True)
    subprocess.run([python.with_name("interlingua"), "--version"], check=True, cwd=folder)
    subprocess.run([python.with_name("interlingua"), "demo"], check=True, cwd=folder, stdin=subprocess.DEVNULL)
    typed = "import interlingua, pathlib; assert pathlib.Path(interlingua.__file__).with_name('py.typed').exists()"
    subprocess.run([python, "-c", typed], check=True, cwd=folder)
print(f"{wheel.name} installs and runs on its own")
