"""Take the documentation's screenshots of a run's report.

    python -m tests.browser.screenshots RUN FOLDER

RUN is a run's directory with a report; FOLDER gets ``report.png``.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from tests.browser.chromium import chromium

WIDTH, HEIGHT = 1100, 790


def take(run: Path, folder: Path) -> None:
    """Write the top of a run's report to ``folder`` as PNG.

    Raises:
        SystemExit: If Chromium is not installed.
    """
    program = shutil.which("chromium") or shutil.which("chromium-browser")
    if program is None:
        raise SystemExit("Chromium is not installed: apt-get install chromium")
    with chromium(program) as browser:
        browser.open(
            (run / "report" / "report.html").resolve(), width=WIDTH, height=HEIGHT, scheme="light"
        )
        clip = {"x": 0, "y": 0, "width": WIDTH, "height": HEIGHT}
        (folder / "report.png").write_bytes(browser.screenshot(clip))


if __name__ == "__main__":
    take(Path(sys.argv[1]), Path(sys.argv[2]))
