"""Program with PyTorch that a test controls: it reads Python code as lines of JSON and answers in JSON.

The program runs in the environment of the frameworks, so it needs only PyTorch and files of the tests.
The program ends with its standard input.
"""

from __future__ import annotations

import sys
from pathlib import Path

import features
import torch
import turns

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "native"))

from cuda_client import main

if __name__ == "__main__":
    main({"features": features, "torch": torch, "turns": turns})
