"""The fakes beside these tests can be imported: state machines are classes, and get no fixtures."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parent))
