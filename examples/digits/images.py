"""Prints the images that the classifier has not seen, one JSON object per line: {"image": [...], "label": n}."""

import json
import sys

from sklearn.datasets import load_digits

count = int(sys.argv[1]) if len(sys.argv) > 1 else 500
digits = load_digits()
for index in range(1297, min(1297 + count, len(digits.target))):
    print(json.dumps({"image": digits.data[index].tolist(), "label": int(digits.target[index])}))
