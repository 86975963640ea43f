// From numbers to pixels, and where ticks go.

/** A scale from the domain [low, high] to the pixels [from, to]. */
function scale(low, high, from, to, isLog = false) {
  const warp = isLog ? Math.log10 : (value) => value;
  const [start, end] = [warp(low), warp(high)];
  const length = end - start || 1;
  const place = (value) => from + ((warp(value) - start) / length) * (to - from);
  place.inverse = (pixel) => {
    const at = start + ((pixel - from) / (to - from)) * length;
    return isLog ? 10 ** at : at;
  };
  place.ticks = (count) => (isLog ? logTicks(low, high, count) : linearTicks(low, high, count));
  return place;
}

/** The domain of values, with some room above and below. */
function domain(low, high, isLog) {
  if (!Number.isFinite(low)) return isLog ? [0.1, 1] : [0, 1];
  if (isLog) {
    const room = Math.max((high / low) ** 0.06, low === high ? 2 : 1.02);
    return [low / room, high * room];
  }
  const room = (high - low) * 0.06 || Math.abs(high) * 0.1 || 1;
  // Zero is a natural end where the values come near.
  const start = low >= 0 && low - room < 0 ? 0 : low - room;
  return [start, high + room];
}

function linearTicks(low, high, count) {
  const rough = (high - low) / Math.max(count, 1);
  const power = 10 ** Math.floor(Math.log10(rough));
  const distance = (size) => Math.abs(Math.log(size / rough));
  const step = [1, 2, 5, 10].map((factor) => factor * power).reduce((best, size) => (distance(size) < distance(best) ? size : best));
  const ticks = [];
  for (let index = Math.ceil(low / step - 1e-9); index * step <= high + step * 1e-9; index += 1) {
    ticks.push(Number((index * step).toPrecision(12)));
  }
  return ticks;
}

function logTicks(low, high, count) {
  const decades = Math.log10(high / low);
  if (decades < 1) return linearTicks(low, high, count).filter((tick) => tick > 0);
  const factors = decades > count ? [1] : decades > count / 2 ? [1, 3] : [1, 2, 5];
  const every = Math.max(1, Math.ceil(decades / count));
  const ticks = [];
  for (let power = Math.floor(Math.log10(low)); power <= Math.log10(high); power += 1) {
    if (power % every === 0) ticks.push(...factors.map((factor) => factor * 10 ** power));
  }
  return ticks.filter((tick) => tick >= low && tick <= high);
}

/** Whole steps only. */
function stepTicks(place, low, high, count) {
  return linearTicks(low, high, count).filter(Number.isInteger);
}

/** A tick of an axis whose greatest one is `most`. */
function tickText(value, most = value) {
  const size = Math.abs(most);
  const [unit, letter] = size >= 1e6 && size < 1e9 ? [1e6, "M"] : size >= 1e5 && size < 1e6 ? [1e3, "k"] : [1, ""];
  // Beside 0.001 the tick at half of it is 0.0005, and not 5e−4.
  const isSmallest = size >= 1e-3 && Math.abs(value) < 1e-3 && Math.abs(value) >= 1e-5;
  const text = isSmallest ? String(value).replace("-", MINUS) : short(value / unit);
  return value === 0 ? "0" : text + letter;
}
