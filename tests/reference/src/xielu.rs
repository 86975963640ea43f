//! The activation of Apertus (Huang and Schlag, "Deriving Activation Functions Using Integration", 2024).

use super::vector::assert_len;

/// The numbers of a layer: `a` and `b` are learned.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Xielu {
    /// α_p = softplus(a).
    pub a: f64,
    /// α_n = β + softplus(b).
    pub b: f64,
    /// β
    pub beta: f64,
    /// ε, below 0.
    pub epsilon: f64,
}

impl Xielu {
    /// α_p·x² + β·x above 0, α_n·(expm1(min(x, ε)) - x) + β·x from 0 down.
    pub fn of(self, x: f64) -> f64 {
        let tail = x.min(self.epsilon).exp_m1() - x;
        let curved = if x > 0.0 { softplus(self.a) * x * x } else { (self.beta + softplus(self.b)) * tail };
        curved + self.beta * x
    }

    /// The gradient of x, and those of a and b, given that of the value.
    pub fn backward(self, x: f64, dy: f64) -> (f64, [f64; 2]) {
        let logistic = |x: f64| 1.0 / (1.0 + (-x).exp());
        if x > 0.0 {
            let slope = 2.0 * softplus(self.a) * x + self.beta;
            return (dy * slope, [dy * x * x * logistic(self.a), 0.0]);
        }
        let of_exponential = if x < self.epsilon { x.exp() } else { 0.0 };
        let slope = (self.beta + softplus(self.b)) * (of_exponential - 1.0) + self.beta;
        let tail = x.min(self.epsilon).exp_m1() - x;
        (dy * slope, [0.0, dy * tail * logistic(self.b)])
    }
}

fn softplus(x: f64) -> f64 {
    x.max(0.0) + (-x.abs()).exp().ln_1p()
}

/// y, element by element.
pub fn xielu(x: &[f64], numbers: Xielu) -> Vec<f64> {
    x.iter().map(|x| numbers.of(*x)).collect()
}

/// dx, and the gradients of a and b, given dy.
#[track_caller]
pub fn xielu_backward(x: &[f64], dy: &[f64], numbers: Xielu) -> (Vec<f64>, [f64; 2]) {
    assert_len("dy", dy, x.len());
    let mut of_numbers = [0.0; 2];
    let gradient = |(x, dy): (&f64, &f64)| {
        let (dx, own) = numbers.backward(*x, *dy);
        of_numbers.iter_mut().zip(own).for_each(|(sum, own)| *sum += own);
        dx
    };
    let dx = x.iter().zip(dy).map(gradient).collect();
    (dx, of_numbers)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gradient_check::{assert_close, assert_gradient};
    use crate::random::Random;
    use crate::vector::dot;

    const NUMBERS: Xielu = Xielu { a: 0.3, b: -0.9, beta: 0.5, epsilon: -0.2 };

    /// torch's values in f64, at x = -3, -0.5, -0.1, 0 and 2.
    #[test]
    fn values_of_torch() {
        let values = [
            0.22418633493335594,
            -0.16039132280495288,
            -0.11835994194501437,
            -0.15247532941822314,
            4.417420977874109,
        ];
        assert_close("xielu", &xielu(&[-3.0, -0.5, -0.1, 0.0, 2.0], NUMBERS), &values, 1e-12);
    }

    #[test]
    fn gradients_are_finite_differences() {
        let mut random = Random::new(5);
        let (x, dy) = (random.normal(40), random.normal(40));
        let (dx, of_numbers) = xielu_backward(&x, &dy, NUMBERS);
        assert_gradient("x", &dx, &x, |x| dot(&xielu(x, NUMBERS), &dy));
        assert_gradient("numbers", &of_numbers, &[NUMBERS.a, NUMBERS.b], |numbers| {
            dot(&xielu(&x, Xielu { a: numbers[0], b: numbers[1], ..NUMBERS }), &dy)
        });
    }
}
