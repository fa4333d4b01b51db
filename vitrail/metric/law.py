"""Scaling laws: how an error E falls with a size C, be it images, compute or time.

    E = a + b (C + c)^-d      saturates (arXiv 2106.04560, equation 1)
    E = b C^-d                the same with a = c = 0: a power law

Variable projection: (c, d) is searched on a grid, which is refined around the best fit, and for each pair a and b are a
linear problem, with bounds (no constant is negative). The power law is used unless an F-test at 5 % prefers the
saturating one.

Intervals are profile likelihoods: all constants whose misfit lies within the quantile of Student's t of the lowest one.
With one run per size the noise is a constant fraction of E, estimated from the residuals; with several it is estimated
from the runs. A bootstrap over runs was the first choice, but three runs per size are too few to resample: see
docs/scaling.md for the simulation. Forecasts come from the saturating law whichever is used, because it contains the
other: their intervals allow for an error that stops falling.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize
from scipy.stats import f as f_distribution
from scipy.stats import t as t_distribution

from vitrail.metric.interval import Interval

Array = NDArray[np.float64]
NUM_CONSTANTS = 4
MIN_SIZES = NUM_CONSTANTS + 1
LEVEL = 0.95
MAX_D = 3.0  # steeper laws of learning are unheard of
MIN_D = 0.01
MAX_C = 10.0  # times the largest size; beyond, the law is a straight line
UNIT_C = 0.01  # times the smallest size: c is searched linearly below, logarithmically above
GRID = 64  # values of c, and of d
ROUNDS = 3  # of refining the grid
SLOPES = (-1.0, 0.0)  # of the relative variance over size, on logarithmic scales
PRIOR_RUNS = 4  # that the noise of all sizes counts for, beside the runs of one size


class UndecidedLawError(ValueError):
    """The points cannot tell which law they follow; the message says why."""


class Forecast(NamedTuple):
    """The error expected at a size, with the 95 % interval of what would be measured there."""

    size: float
    value: float
    interval: Interval


class Noise(NamedTuple):
    """How noisy the mean at each size is, and how well that is known."""

    errors: Array
    """Standard errors."""
    scale: float
    slope: float
    """The variance of a single run relative to its error squared: scale * size^slope."""
    freedom: int
    """Degrees of freedom of the estimate from runs; 0 if there is one run per size, and only proportions are known."""


def estimate_noise(sizes: Array, runs: Sequence[Sequence[float]], resolution: float = 0.0) -> Noise:
    """The noise of the mean at each size: its own runs' variance, shrunk towards a trend over all sizes.

    Relative to the error, larger subsets vary less from one to the next.
    """
    means = np.array([np.mean(each) for each in runs])
    nums = np.array([len(each) for each in runs])
    squares = np.array([((np.array(each) - np.mean(each)) ** 2).sum() for each in runs])
    freedom = int((nums - 1).sum())
    floor = resolution**2  # no mean is known better than to one test image
    if not freedom:
        return Noise(np.sqrt(means**2 + floor), 0.0, 0.0, 0)
    several = (nums > 1) & (means > 0)
    relative = (squares[several] / (nums[several] - 1) + floor) / means[several] ** 2
    logs = np.log(sizes[several])
    slope = float(np.polyfit(logs, np.log(relative), 1)[0]) if several.sum() > 2 and floor + squares.min() > 0 else 0.0
    slope = float(np.clip(slope, *SLOPES))
    scale = float(np.average(relative / sizes[several] ** slope, weights=nums[several] - 1))
    typical = scale * sizes**slope * means**2
    variances = (PRIOR_RUNS * typical + squares) / (PRIOR_RUNS + nums - 1) + floor
    return Noise(np.sqrt(variances / nums), scale, slope, freedom)


class Cells(NamedTuple):
    """Pairs (c, d), and for each the linear problem in a and b: E = a + b ((C + c) / (C_min + c))^-d."""

    c: Array
    d: Array
    columns: Array
    """[cells, 2, sizes], divided by the noise."""
    target: Array

    @property
    def normal(self) -> tuple[Array, Array, Array]:
        """The entries of the normal matrix: of a, of both, of b."""
        a, b = self.columns[:, 0], self.columns[:, 1]
        return (a * a).sum(axis=1), (a * b).sum(axis=1), (b * b).sum(axis=1)

    def misfit(self, a: Array, b: Array) -> Array:
        """The sum of squared residuals, in units of the noise."""
        residuals = self.target - a[:, None] * self.columns[:, 0] - b[:, None] * self.columns[:, 1]
        return (residuals**2).sum(axis=1)

    def free(self) -> tuple[Array, Array]:
        """The best a and b, whatever their signs."""
        aa, ab, bb = self.normal
        ay, by = self.columns[:, 0] @ self.target, self.columns[:, 1] @ self.target
        determinant = np.maximum(aa * bb - ab**2, 1e-12 * aa * bb)
        return (bb * ay - ab * by) / determinant, (aa * by - ab * ay) / determinant

    def solve(self, *, floor: bool = True) -> tuple[Array, Array, Array]:
        """The best a and b that are not negative, and their misfit; without a `floor`, a is 0."""
        aa, _, bb = self.normal
        zeros = np.zeros(len(self.c))
        candidates = [(zeros, np.maximum(self.columns[:, 1] @ self.target / bb, 0.0))]
        if floor:
            candidates.append((np.maximum(self.columns[:, 0] @ self.target / aa, 0.0), zeros))
            a, b = self.free()
            inside = (a >= 0) & (b >= 0)
            candidates.append((np.where(inside, a, candidates[0][0]), np.where(inside, b, candidates[0][1])))
        misfits = np.stack([self.misfit(*each) for each in candidates])
        best = misfits.argmin(axis=0)
        a, b = (np.take_along_axis(np.stack(each), best[None], 0)[0] for each in zip(*candidates, strict=True))
        return a, b, misfits.min(axis=0)

    def extremes(self, of_a: Array, of_b: Array, limit: float, *, floor: bool = True) -> Interval | None:
        """The range of of_a * a + of_b * b over all laws whose misfit is at most `limit`.

        For each (c, d) they are an ellipse within a quadrant: the range ends on the ellipse, or where it cuts an axis.
        """
        aa, ab, bb = self.normal
        found: list[Array] = []
        for a, b, allowed in self._axis_ends(limit, aa, bb, floor=floor):
            found.append(np.where(allowed, of_a * a + of_b * b, np.nan))
        if floor:
            a, b = self.free()
            spare = limit - self.misfit(a, b)
            determinant = np.maximum(aa * bb - ab**2, 1e-12 * aa * bb)
            step_a, step_b = (bb * of_a - ab * of_b) / determinant, (aa * of_b - ab * of_a) / determinant
            length = np.sqrt(np.maximum(spare, 0) / np.maximum(of_a * step_a + of_b * step_b, 1e-300))
            for sign in (-1, 1):
                end_a, end_b = a + sign * length * step_a, b + sign * length * step_b
                allowed = (spare >= 0) & (end_a >= 0) & (end_b >= 0)
                found.append(np.where(allowed, of_a * end_a + of_b * end_b, np.nan))
        values = np.concatenate(found)
        return None if np.isnan(values).all() else (float(np.nanmin(values)), float(np.nanmax(values)))

    def _axis_ends(
        self, limit: float, aa: Array, bb: Array, *, floor: bool
    ) -> list[tuple[Array, Array, NDArray[np.bool_]]]:
        """Where the ellipse cuts a = 0 and, with a floor, b = 0."""
        zeros, ends = np.zeros(len(self.c)), []
        for axis, weight in ((1, bb), (0, aa))[: 2 if floor else 1]:
            centre = self.columns[:, axis] @ self.target / weight
            spare = limit - self.misfit(*((zeros, centre) if axis else (centre, zeros)))
            reach = np.sqrt(np.maximum(spare, 0) / weight)
            for value in (centre - reach, centre + reach):
                clipped = np.maximum(value, 0.0)
                allowed = (spare >= 0) & (centre + reach >= 0)
                ends.append((zeros, clipped, allowed) if axis else (clipped, zeros, allowed))
        return ends


class Fit:
    """One of the two laws, fitted to the mean errors at each size."""

    def __init__(self, sizes: Array, means: Array, noise: Noise, *, floor: bool) -> None:
        self.sizes, self.means, self.noise, self.floor = sizes, means, noise, floor
        self.num_constants = NUM_CONSTANTS if floor else 2
        self.unit = UNIT_C * float(sizes.min())
        self.u_range = (0.0, float(np.log1p(MAX_C * sizes.max() / self.unit)) if floor else 0.0)
        self.d_range = (float(np.log(MIN_D)), float(np.log(MAX_D)))
        u, log_d = self._search()
        best = self.cells(np.array([u]), np.array([log_d]))
        a, b, misfit = best.solve(floor=floor)
        self.misfit, self.c, self.d = float(misfit[0]), float(best.c[0]), float(best.d[0])
        self.a, self.b = float(a[0]), float(b[0] * (sizes.min() + self.c) ** self.d)
        self.region = self._refine()

    def cells(self, u: Array, log_d: Array) -> Cells:
        """The linear problems at these c = unit (exp(u) - 1) and d."""
        c, d = self.unit * np.expm1(u), np.exp(log_d)
        powers = ((self.sizes + c[:, None]) / (self.sizes.min() + c[:, None])) ** -d[:, None]
        columns = np.stack([np.ones_like(powers), powers], axis=1) / self.noise.errors
        return Cells(c, d, columns, self.means / self.noise.errors)

    def _grid(self, u_range: Interval, d_range: Interval) -> Cells:
        u = np.linspace(*u_range, GRID) if self.floor else np.zeros(1)
        mesh = np.meshgrid(u, np.linspace(*d_range, GRID if self.floor else GRID**2), indexing="ij")
        return self.cells(mesh[0].ravel(), mesh[1].ravel())

    def _search(self) -> tuple[float, float]:
        """The best (u, log d): of the grid, then polished."""
        cells = self._grid(self.u_range, self.d_range)
        best = int(cells.solve(floor=self.floor)[2].argmin())
        start = np.array([np.log1p(cells.c[best] / self.unit), np.log(cells.d[best])])

        def misfit(at: Array) -> float:
            one = self.cells(np.array([np.clip(at[0], *self.u_range)]), np.array([np.clip(at[1], *self.d_range)]))
            return float(one.solve(floor=self.floor)[2][0])

        polished = minimize(misfit, start, method="Nelder-Mead", options={"xatol": 1e-6, "fatol": 1e-10})
        return float(np.clip(polished.x[0], *self.u_range)), float(np.clip(polished.x[1], *self.d_range))

    @property
    def freedom(self) -> int:
        """Degrees of freedom of the noise: those of the residuals, and of the runs."""
        return len(self.sizes) - self.num_constants + self.noise.freedom

    @property
    def scale(self) -> float:
        """The variance in units of the noise; a law that fits badly is noisier than its runs."""
        residual = self.misfit / max(1, len(self.sizes) - self.num_constants)
        return max(1.0, residual) if self.noise.freedom else residual

    @property
    def limit(self) -> float:
        """The largest misfit of laws within the 95 % interval."""
        quantile = float(t_distribution.ppf(0.5 + LEVEL / 2, self.freedom))
        return self.misfit + max(self.scale, 1e-18) * quantile**2

    def _refine(self) -> Cells:
        """The grid around all laws within the interval, and the best law itself."""
        u_range, d_range = self.u_range, self.d_range
        for _ in range(ROUNDS):
            cells = self._grid(u_range, d_range)
            inside = cells.solve(floor=self.floor)[2] <= self.limit
            u = np.append(np.log1p(cells.c[inside] / self.unit), np.log1p(self.c / self.unit))
            log_d = np.append(np.log(cells.d[inside]), np.log(self.d))
            u_range, d_range = _widen(u, u_range), _widen(log_d, d_range)
        cells, best = self._grid(u_range, d_range), self.cells(np.log1p([self.c / self.unit]), np.log([self.d]))
        c, d = np.append(cells.c, best.c), np.append(cells.d, best.d)
        return Cells(c, d, np.concatenate([cells.columns, best.columns]), cells.target)

    def intervals(self) -> dict[str, Interval]:
        """The 95 % interval of each constant."""
        cells = self.region
        ones, zeros = np.ones(len(cells.c)), np.zeros(len(cells.c))
        inside = cells.solve(floor=self.floor)[2] <= self.limit * (1 + 1e-12)
        scale = (self.sizes.min() + cells.c) ** cells.d
        found = {
            "a": cells.extremes(ones, zeros, self.limit, floor=self.floor),
            "b": cells.extremes(zeros, scale, self.limit, floor=self.floor),
            "c": (float(cells.c[inside].min()), float(cells.c[inside].max())),
            "d": (float(cells.d[inside].min()), float(cells.d[inside].max())),
        }
        return {name: _include(each, getattr(self, name)) for name, each in found.items()}

    def at(self, size: float) -> float:
        """The error at a size."""
        return float(self.a + self.b * (size + self.c) ** -self.d)

    def interval_at(self, size: float) -> Interval:
        """The 95 % interval of the law's value at a size."""
        cells = self.region
        powers = ((size + cells.c) / (self.sizes.min() + cells.c)) ** -cells.d
        return _include(cells.extremes(np.ones(len(powers)), powers, self.limit, floor=self.floor), self.at(size))


def _widen(values: Array, outer: Interval) -> Interval:
    """The range of the values and a tenth more, within the outer range."""
    margin = 0.1 * float(np.ptp(values)) + (outer[1] - outer[0]) / GRID
    return max(outer[0], float(values.min()) - margin), min(outer[1], float(values.max()) + margin)


def _include(interval: Interval | None, value: float) -> Interval:
    return (value, value) if interval is None else (min(interval[0], value), max(interval[1], value))


class Law:
    """E = a + b (C + c)^-d, fitted, with intervals and forecasts; a = c = 0 for a power law."""

    def __init__(self, chosen: Fit, widest: Fit) -> None:
        self.a, self.b, self.c, self.d = chosen.a, chosen.b, chosen.c, chosen.d
        self.saturates = chosen.floor
        self.intervals = chosen.intervals()
        self._chosen, self._widest = chosen, widest

    @property
    def constants(self) -> dict[str, float]:
        """The four constants by name."""
        return {"a": self.a, "b": self.b, "c": self.c, "d": self.d}

    def forecast(self, size: float, *, num_runs: int | None = 1) -> Forecast:
        """The error at a size; the interval is that of the mean of `num_runs` runs there, of the law alone for None."""
        widest, value = self._widest, self._chosen.at(size)
        low, high = _include(widest.interval_at(size), value)
        noise = 0.0
        if num_runs is not None:
            known = widest.noise.freedom > 0
            relative = float(np.sqrt(widest.noise.scale * size**widest.noise.slope if known else widest.scale))
            quantile = float(t_distribution.ppf(0.5 + LEVEL / 2, widest.freedom))
            noise = quantile * relative * value / np.sqrt(num_runs)
        low, high = value - float(np.hypot(value - low, noise)), value + float(np.hypot(high - value, noise))
        return Forecast(size, value, (max(0.0, low), high))


def fit_law(sizes: Sequence[float], runs: Sequence[Sequence[float]], *, resolution: float = 0.0) -> Law:
    """Fit both laws to the errors of the runs at each size, and choose one.

    Raises `UndecidedLawError` if the points cannot tell. `resolution` is the step of the errors: one over the number
    of test images.
    """
    xs, means = np.array(sizes, dtype=np.float64), np.array([np.mean(each) for each in runs], dtype=np.float64)
    _check_points(xs, means, resolution)
    noise = estimate_noise(xs, runs, resolution)
    widest = Fit(xs, means, noise, floor=True)
    _check_shape(widest)
    power = Fit(xs, means, noise, floor=False)
    gain = (power.misfit - widest.misfit) / (NUM_CONSTANTS - power.num_constants)
    threshold = f_distribution.ppf(LEVEL, NUM_CONSTANTS - power.num_constants, widest.freedom)
    return Law(widest if gain > threshold * max(widest.scale, 1e-18) else power, widest)


def _check_points(sizes: Array, means: Array, resolution: float) -> None:
    num = len(np.unique(sizes))
    if num < MIN_SIZES:
        raise UndecidedLawError(
            f"{NUM_CONSTANTS} constants need at least {MIN_SIZES} sizes, and there {'is' if num == 1 else 'are'} {num}"
        )
    if not (np.isfinite(means).all() and (sizes > 0).all()):
        raise UndecidedLawError("sizes must be positive, and errors finite")
    if not (means > 0).any() or (not resolution and not (means > 0).all()):
        raise UndecidedLawError("there are no errors left to fall")


def _check_shape(widest: Fit) -> None:
    """Refuse errors that do not fall, or fall along a straight line."""
    xs, means, errors = widest.sizes, widest.means, widest.noise.errors
    quantile = float(t_distribution.ppf(0.5 + LEVEL / 2, widest.freedom))
    slope, error, misfit = _fit_line(np.log(xs), means, errors)
    log_scale = misfit / max(1, len(xs) - 2)
    spread = error * quantile * float(np.sqrt(max(1.0, log_scale) if widest.noise.freedom else log_scale))
    if slope > spread:
        raise UndecidedLawError("the error rises with size, and no such law does")
    if slope > -spread:
        raise UndecidedLawError("the error does not fall beyond its noise")
    _, _, straight = _fit_line(xs, means, errors)
    if straight <= max(widest.limit, 1e-9 * float(((means / errors) ** 2).sum())):
        raise UndecidedLawError("the points lie on a straight line, which says nothing about where the fall ends")


def _fit_line(xs: Array, ys: Array, errors: Array) -> tuple[float, float, float]:
    """The slope of a weighted straight line, its standard error in units of the noise, and the misfit."""
    columns = np.stack([np.ones_like(xs), xs - xs.mean()], axis=1) / errors[:, None]
    solution, *_ = np.linalg.lstsq(columns, ys / errors, rcond=None)
    covariance = np.linalg.inv(columns.T @ columns)
    return float(solution[1]), float(np.sqrt(covariance[1, 1])), float(((ys / errors - columns @ solution) ** 2).sum())
