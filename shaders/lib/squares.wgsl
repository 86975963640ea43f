// Sums of squares of f32 values of any size, and their root.
//
// Squares of values above 2^40 are summed times 2^-176, and squares of values below 2^-40 times 2^150, each apart from
// the others, so that no square overflows or vanishes. A norm above the largest f32 becomes the largest f32. The code
// that loads the values counts those that are not finite, in the last component (lib/bits).
// Source: Blue, "A Portable Fortran Program to Find the Euclidean Norm of a Vector", 1978; LAPACK's dnrm2.

// Sums of squares by the size of their values: large ones times DOWN², ordinary ones, small ones times UP²; and how
// many groups are not finite.
alias Squares = vec4<f32>;

const LARGE = 1099511627776.0; // 2^40
const SMALL = 9.094947017729282e-13; // 2^-40
const DOWN = 3.2311742677852644e-27; // 2^-88: 2^34 squares of the largest f32 have a finite sum
const UP = 3.777893186295716e22; // 2^75: the square of the smallest normal f32 is normal
const LARGEST = 3.4028234663852886e38;
const SMALLEST = 1.1754943508222875e-38; // normal

fn squares_of(values: vec4<f32>, overflows: bool) -> Squares {
    let sizes = abs(values);
    let is_large = sizes > vec4<f32>(LARGE);
    let is_small = sizes < vec4<f32>(SMALL);
    let scaled = sizes * select(select(vec4<f32>(1.0), vec4<f32>(UP), is_small), vec4<f32>(DOWN), is_large);
    let large = select(vec4<f32>(0.0), scaled, is_large);
    let small = select(vec4<f32>(0.0), scaled, is_small);
    let ordinary = select(scaled, vec4<f32>(0.0), is_large | is_small);
    return Squares(dot(large, large), dot(ordinary, ordinary), dot(small, small), select(0.0, 1.0, overflows));
}

// The root of the sum of all squares, at most the largest f32.
fn norm_of(sums: Squares) -> f32 {
    let large = sqrt(sums.x);
    if (large >= LARGEST * DOWN) {
        return LARGEST;
    }
    return hypotenuse(large / DOWN, hypotenuse(sqrt(sums.y), sqrt(sums.z) / UP));
}

// √(a² + b²) of two lengths.
fn hypotenuse(a: f32, b: f32) -> f32 {
    let longer = max(a, b);
    let ratio = min(a, b) / max(longer, SMALLEST);
    return min(longer * sqrt(1.0 + ratio * ratio), LARGEST);
}
