"""Audio files of known content for the tests of data."""

import json

import numpy as np
import soundfile


def write_audio(path, seconds=0.1, *, rate=16000, channels=1, value=0.1):
    """Write so many seconds of a constant."""
    path.parent.mkdir(parents=True, exist_ok=True)
    soundfile.write(path, np.full((round(seconds * rate), channels), value), rate)
    return path


def write_lines(path, *lines):
    """Write text, or objects as JSON, one a line."""
    path.parent.mkdir(parents=True, exist_ok=True)
    texts = [line if isinstance(line, str) else json.dumps(line, ensure_ascii=False) for line in lines]
    path.write_text("".join(text + "\n" for text in texts), encoding="utf-8")
    return path
