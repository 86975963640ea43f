// The runs of the page, and what arrives while one goes on.

/** A curve: bins with their first step, mean and extremes; a mean of null is a gap. */
class Curve {
  constructor({ key, name, points, to, mean, min, max }, steps) {
    Object.assign(this, { key, name, points, to, mean, steps });
    this.min = min ?? mean;
    this.max = max ?? mean;
    this.kept = new Map();
  }

  /** Appends the bins of a later `curve`, whose first may take the place of the last here. */
  append(curve) {
    if (curve.steps.length === 0) return;
    const first = curve.steps[0];
    let kept = this.steps.length;
    while (kept > 0 && this.steps[kept - 1] >= first) kept -= 1;
    for (const list of ["steps", "mean", "min", "max"]) {
      this[list] = this[list].slice(0, kept).concat(curve[list]);
    }
    this.points = curve.points;
    this.to = curve.to;
    this.kept.clear();
  }

  /** The bin that `step` lies in, or the last one before it; -1 before the first. */
  at(step) {
    let [low, high] = [0, this.steps.length];
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.steps[middle] <= step) low = middle + 1;
      else high = middle;
    }
    return low - 1;
  }

  /** The last mean that is a number. */
  last() {
    return this.mean.findLast((value) => value !== null) ?? null;
  }

  /** Means, smoothed exponentially: `weight` is the share of the past, corrected at the start. Gaps stay gaps. */
  smoothed(weight) {
    if (!(weight > 0)) return this.mean;
    if (!this.kept.has(weight)) {
      let [sum, total] = [0, 0];
      const smooth = this.mean.map((value) => {
        if (value === null) return null;
        sum = weight * sum + (1 - weight) * value;
        total = weight * total + (1 - weight);
        return sum / total;
      });
      this.kept.clear();
      this.kept.set(weight, smooth);
    }
    return this.kept.get(weight);
  }
}

/** A run. */
class Run {
  constructor(data, index) {
    this.index = index;
    this.families = new Map();
    this.take(data);
  }

  /** Takes in the data of a run: all of it, or what is new. */
  take(data) {
    const { curves, axes, settings, ...rest } = data;
    if (data.after === undefined) this.families.clear();
    Object.assign(this, rest);
    if (settings !== undefined) this.settings = settings;
    for (const written of curves) {
      const curve = new Curve(written, axes[written.axis]);
      if (!this.families.has(curve.key)) this.families.set(curve.key, []);
      const family = this.families.get(curve.key);
      const known = family.find((other) => other.name === curve.name);
      if (known) known.append(curve);
      else family.push(curve);
    }
    this.firstStep = Math.min(...[...this.families.values()].flat().map((curve) => curve.steps[0] ?? Infinity));
  }

  /** The curve of a key that has one. */
  curve(key) {
    return this.families.get(key)?.[0];
  }

  marksOf(key) {
    return this.marks.find((marks) => marks.key === key);
  }

  /** The settings by path; none where the file could not be read. */
  rows() {
    return this.settings?.rows ?? [];
  }

  valueOf(path) {
    return this.rows().find((row) => row.path === path)?.value;
  }
}

/** The median of a curve's means. */
function median(curve) {
  const values = (curve?.mean ?? []).filter((value) => value !== null).sort((one, other) => one - other);
  return values.length ? values[values.length >> 1] : null;
}
