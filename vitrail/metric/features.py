"""How much features tell about classes that they were not trained on: nearest neighbours, a linear model, their spread.

Each sample is predicted from all others, so that a single split is enough.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

NUM_NEIGHBOURS = 10
RIDGE = 0.1  # per sample, for standardised features
EPS = 1e-12


def neighbour_accuracy(features: NDArray[np.float64], labels: NDArray[np.int64]) -> float:
    """The accuracy of the majority among the most similar other samples, by cosine; closer ones have more weight."""
    num = len(features)
    units = features / np.maximum(np.linalg.norm(features, axis=1, keepdims=True), EPS)
    similarity = units @ units.T
    np.fill_diagonal(similarity, -np.inf)
    k = min(NUM_NEIGHBOURS, num - 1)
    nearest = np.argpartition(-similarity, k - 1, axis=1)[:, :k]
    votes = np.zeros((num, int(labels.max()) + 1))
    rows = np.arange(num)[:, None]
    np.add.at(votes, (rows, labels[nearest]), similarity[rows, nearest] + 1.0 + EPS)
    return float((votes.argmax(axis=1) == labels).mean())


def linear_accuracy(features: NDArray[np.float64], labels: NDArray[np.int64]) -> float:
    """The leave-one-out accuracy of ridge regression on the classes, by its closed form."""
    num = len(features)
    x = (features - features.mean(axis=0)) / np.maximum(features.std(axis=0), EPS)
    y = np.eye(int(labels.max()) + 1)[labels]
    y = y - y.mean(axis=0)
    gram = x.T @ x + RIDGE * num * np.eye(x.shape[1])
    projected = np.linalg.solve(gram, x.T)
    leverage = np.einsum("nd,dn->n", x, projected) + 1.0 / num
    predicted = x @ (projected @ y)
    left_out = (predicted - leverage[:, None] * y) / np.maximum(1.0 - leverage, EPS)[:, None]
    return float((left_out.argmax(axis=1) == labels).mean())


def relative_spread(features: NDArray[np.float64]) -> float:
    """The variance of the features over their mean square: 0 if all samples have the same."""
    return float(features.var(axis=0).sum() / max(float(np.square(features).sum(axis=1).mean()), EPS))
