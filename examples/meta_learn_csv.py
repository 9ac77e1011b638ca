"""Meta-learn an NC on a CSV file, look at its report and save it. Takes about five minutes."""

import csv
from pathlib import Path

import numpy as np
from sklearn.datasets import load_breast_cancer

from neural_complexity import NeuralComplexity, meta_learn, split_tasks

# A file as you may have one: a header, features, and the label in the last column.
path = Path("tumours.csv")
data = load_breast_cancer()
with path.open("w", newline="") as file:
    writer = csv.writer(file)
    writer.writerow([*data.feature_names, "diagnosis"])
    for features, label in zip(data.data, data.target, strict=True):
        writer.writerow([*features, data.target_names[label]])

table = np.genfromtxt(path, delimiter=",", skip_header=1, dtype=str)
X, y = table[:, :-1].astype(float), table[:, -1]
X = (X - X.mean(axis=0)) / X.std(axis=0)

# With a folder, an interrupted run resumes when it is called again.
nc = meta_learn(split_tasks(X, y), budget="5min", folder="tumours-nc")
print(nc.card.report.verdict)

nc.save("tumours.safetensors")
print(NeuralComplexity.load("tumours.safetensors").card.classes)
