"""What the README shows."""

import re
from pathlib import Path

README = (Path(__file__).parents[2] / "README.md").read_text()
BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```", README, re.MULTILINE | re.DOTALL)
JOB = next(text for kind, text in BLOCKS if kind == "yaml")
